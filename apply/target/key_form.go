package target

import (
	"bytes"
	"encoding/binary"

	"pgapply/apply/catalog"
	"pgapply/decoder"
)

// appendKey appends the bytes by which equal values of a column are told: values that are
// equal on the target, sent in the same form, append the same.
func appendKey(to []byte, form catalog.KeyForm, value *decoder.Value) []byte {
	data := value.Data
	switch form {
	case catalog.Padded:
		return append(to, bytes.TrimRight(data, " ")...)
	case catalog.FloatForm:
		if value.Kind == decoder.Text {
			return append(to, bytes.TrimPrefix(data, minusZero(data))...)
		}
		return appendFloat(to, data)
	case catalog.NumericForm:
		if value.Kind == decoder.Text {
			return append(to, withoutZeros(data)...)
		}
		return appendNumeric(to, data)
	case catalog.Bytes, catalog.NoForm:
	}
	return append(to, data...)
}

// minusZero is the sign of a zero that has one (float8out).
func minusZero(text []byte) []byte {
	if string(text) == "-0" {
		return text[:1]
	}
	return nil
}

// appendFloat appends a binary value (float8send), of which zero may have a sign.
func appendFloat(to, data []byte) []byte {
	if len(data) > 0 && data[0] == 0x80 && len(bytes.Trim(data[1:], "\x00")) == 0 {
		return append(append(to, 0), data[1:]...)
	}
	return append(to, data...)
}

// withoutZeros is a numeric in text form without the zeros at the end of its fraction
// (numeric_out).
func withoutZeros(text []byte) []byte {
	if bytes.IndexByte(text, '.') < 0 {
		return text
	}
	return bytes.TrimSuffix(bytes.TrimRight(text, "0"), []byte("."))
}

// appendNumeric appends a numeric in binary form without its number of decimal digits
// (numeric_send): the digits proper, four decimal ones each, have no zeros at their end.
func appendNumeric(to, data []byte) []byte {
	const header = 8 // ndigits, weight, sign, dscale
	if len(data) < header {
		return append(to, data...)
	}
	digits := data[header:]
	for n := len(digits); n >= 2 && binary.BigEndian.Uint16(digits[n-2:]) == 0; n = len(digits) {
		digits = digits[:n-2]
	}
	to = append(to, data[2:6]...) // weight and sign
	return append(to, digits...)
}
