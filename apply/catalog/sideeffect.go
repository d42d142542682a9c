package catalog

import "fmt"

// SideEffect is something on a target table that answers to SQL and that the native
// subscription, which does not speak SQL, would not set off: a rule, or a statement
// trigger for changes of rows, that is enabled for replicated changes.
type SideEffect struct {
	Schema, Table string
	// Kind is "rule" or "statement trigger".
	Kind, Name string
}

func (s SideEffect) String() string { return fmt.Sprintf("%s %q", s.Kind, s.Name) }

// LoadSideEffects returns those of all tables in the database, which are few.
func LoadSideEffects(querier Querier) ([]SideEffect, error) {
	// The bits of tgtype are those of pg_trigger.h: 1 for each row; 4, 8 and 16 on
	// INSERT, DELETE and UPDATE. Triggers on TRUNCATE fire natively too.
	rows, err := querier.Query(`
		SELECT n.nspname, c.relname, e.kind, e.name
		FROM (
			SELECT ev_class, 'rule', rulename FROM pg_catalog.pg_rewrite WHERE ev_enabled IN ('A', 'R')
			UNION ALL
			SELECT tgrelid, 'statement trigger', tgname FROM pg_catalog.pg_trigger
			WHERE tgenabled IN ('A', 'R') AND NOT tgisinternal AND (tgtype & 1) = 0 AND (tgtype & 28) <> 0
		) e (relation, kind, name)
		JOIN pg_catalog.pg_class c ON c.oid = e.relation AND c.relkind IN ('r', 'p')
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		ORDER BY 1, 2, 3, 4`)
	if err != nil {
		return nil, fmt.Errorf("look for rules and statement triggers: %w", err)
	}
	effects := make([]SideEffect, len(rows))
	for i, row := range rows {
		effects[i] = SideEffect{Schema: string(row[0]), Table: string(row[1]), Kind: string(row[2]), Name: string(row[3])}
	}
	return effects, nil
}
