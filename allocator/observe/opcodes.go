package observe

// Opcodes of pickle, protocols 2 to 5, for data without classes. The reader refuses all
// others, among them those that call code.
const (
	opMark       = '('
	opStop       = '.'
	opNone       = 'N'
	opTrue       = 0x88
	opFalse      = 0x89
	opInt4       = 'J' // BININT: 4 bytes, signed
	opInt1       = 'K' // BININT1
	opInt2       = 'M' // BININT2
	opLong1      = 0x8a
	opLong4      = 0x8b
	opFloat      = 'G'
	opText4      = 'X' // BINUNICODE: a length of 4 bytes
	opText1      = 0x8c
	opText8      = 0x8d
	opBytes4     = 'B'
	opBytes1     = 'C'
	opBytes8     = 0x8e
	opByteArray8 = 0x96
	opEmptyTuple = ')'
	opTuple      = 't'
	opTuple1     = 0x85
	opTuple2     = 0x86
	opTuple3     = 0x87
	opEmptyList  = ']'
	opAppend     = 'a'
	opAppends    = 'e'
	opEmptyDict  = '}'
	opSetItem    = 's'
	opSetItems   = 'u'
	opPut1       = 'q' // BINPUT
	opPut4       = 'r'
	opGet1       = 'h' // BINGET
	opGet4       = 'j'
	opMemoize    = 0x94
	opProto      = 0x80
	opFrame      = 0x95
)

// argument is the size of the number, or length, that follows an opcode.
var argument = [256]uint8{
	opInt1: 1, opInt2: 2, opInt4: 4, opLong1: 1, opLong4: 4, opFloat: 8,
	opText1: 1, opText4: 4, opText8: 8,
	opBytes1: 1, opBytes4: 4, opBytes8: 8, opByteArray8: 8,
	opPut1: 1, opPut4: 4, opGet1: 1, opGet4: 4,
	opFrame: 8, // a length
}
