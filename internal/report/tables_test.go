package report

import (
	"testing"

	"mlpool/internal/stats"
)

func TestNumbers(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{digits(0), "0"}, {digits(0.804), "0.80"}, {digits(9.996), "10.0"}, {digits(48.93), "48.9"}, {digits(99.96), "100"}, {digits(-1.5), "−1.50"},
		{percent(0.44), "+0.4 %"}, {percent(-21), "−21.0 %"}, {percent(361.4), "+361.4 %"},
		{requests(0), "1"}, {requests(9), "512"}, {requests(10), "1.02k"}, {requests(20), "1.05M"}, {requests(62), "4.61E"},
		{interval(stats.Difference{Low: -1.1, High: 0.3}), "−1.1 to +0.3 %"},
	} {
		if test.got != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
}
