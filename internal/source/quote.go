package source

import "strings"

// identifier quotes a name for SQL, for replication commands and for the list
// publication_names, which share one rule.
func identifier(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// literal quotes a string for SQL in a way that standard_conforming_strings
// does not change (as PQescapeLiteral does).
func literal(value string) string {
	quoted := "'" + strings.ReplaceAll(value, "'", "''") + "'"
	if strings.Contains(value, `\`) {
		return " E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// commandLiteral quotes a string for a replication command, whose grammar
// (repl_scanner.l) knows no escape but the doubled quote.
func commandLiteral(value string) string {
	return "'" + strings.ReplaceAll(value, "'", "''") + "'"
}

func literals(values []string) string {
	quoted := make([]string, len(values))
	for i, value := range values {
		quoted[i] = literal(value)
	}
	return strings.Join(quoted, ", ")
}
