package operate

import (
	"fmt"
	"regexp"
	"strings"
)

// holds tells whether every value of one type is surely one of another, in its text form.
func holds(target, publisher string) bool {
	base := func(name string) string { return modifier.ReplaceAllString(name, "") }
	switch target {
	case publisher, "text", base(publisher):
		return true
	}
	wider := map[string][]string{
		"smallint":         {"integer", "bigint", "numeric", "real", "double precision"},
		"integer":          {"bigint", "numeric", "double precision"},
		"bigint":           {"numeric"},
		"text":             {"character varying"},
		"character":        {"character varying"},
		"date":             {"timestamp without time zone"},
		"real":             {"double precision", "numeric"},
		"double precision": {"numeric"},
	}
	for _, name := range wider[base(publisher)] {
		if target == name {
			return true
		}
	}
	var more, fewer int
	if _, err := fmt.Sscanf(target, "character varying(%d)", &more); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(publisher, "character varying(%d)", &fewer); err != nil {
		return false
	}
	return more >= fewer
}

// modifier is the (10) or (8,2) in the name of a type.
var modifier = regexp.MustCompile(`\(-?\d+(?:,-?\d+)?\)`)

// checkTypes warns of columns that may not take all that comes.
func checkTypes(_ *facts, t *tableFacts) []Finding {
	if len(t.narrower) == 0 {
		return nil
	}
	return warning(t.name(), "give them the publisher's types, or be sure that all values fit",
		"types differ, and a value that does not fit stops the subscription: %s", strings.Join(t.narrower, ", "))
}
