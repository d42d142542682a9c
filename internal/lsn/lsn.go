// Package lsn is the vocabulary for positions in a publisher's or a target's
// write-ahead log. It belongs to the cellar: every package may import it, and
// it imports nothing of ours.
package lsn

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
)

// LSN is a byte position in a write-ahead log. The zero LSN is never a valid
// position and stands for "none".
type LSN = pglogrepl.LSN

// Parse reads the text form that PostgreSQL prints, such as 16/B374D848. It is
// as strict as pg_lsn_in: one to eight hexadecimal digits on either side of the
// slash and nothing else. (The library's own parser accepts trailing junk.)
func Parse(text string) (LSN, error) {
	high, low, found := strings.Cut(text, "/")
	if !found {
		return 0, fmt.Errorf("invalid LSN %q: want two hexadecimal numbers with a slash between them, such as 16/B374D848", text)
	}
	upper, upperOK := parseHalf(high)
	lower, lowerOK := parseHalf(low)
	if !upperOK || !lowerOK {
		return 0, fmt.Errorf("invalid LSN %q: want one to eight hexadecimal digits on either side of the slash, such as 16/B374D848", text)
	}
	return LSN(upper<<32 | lower), nil
}

func parseHalf(digits string) (uint64, bool) {
	if len(digits) < 1 || len(digits) > 8 || strings.ContainsAny(digits, "+-_") {
		return 0, false
	}
	value, err := strconv.ParseUint(digits, 16, 32)
	return value, err == nil
}
