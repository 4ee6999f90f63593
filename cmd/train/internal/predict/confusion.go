package predict

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// A Confusion counts images by their label and their prediction: [label][prediction].
type Confusion [][]int

// Confuse counts predictions by label. Both are below classes.
func Confuse(predictions []int, labels []uint8, classes int) Confusion {
	c := make(Confusion, classes)
	for i := range c {
		c[i] = make([]int, classes)
	}
	for i, p := range predictions {
		c[labels[i]][p]++
	}
	return c
}

// Accuracy returns the share of the images whose prediction is their label, 0 to 1.
func (c Confusion) Accuracy() float64 {
	right, all := 0, 0
	for label, row := range c {
		right += row[label]
		for _, n := range row {
			all += n
		}
	}
	return float64(right) / float64(all)
}

// WriteText writes a table with a row for each label and a column for each prediction.
func (c Confusion) WriteText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "label\\prediction\t")
	for class := range c {
		fmt.Fprintf(table, "%d\t", class)
	}
	fmt.Fprintln(table)
	for label, row := range c {
		fmt.Fprintf(table, "%d\t", label)
		for _, n := range row {
			fmt.Fprintf(table, "%d\t", n)
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}
