package catalog

import "fmt"

// SideEffect is something on a target table that answers to what is applied, and that
// the native subscription would not set off.
type SideEffect struct {
	Schema, Table string
	// Kind is "rule", "statement trigger", "trigger" or "foreign key".
	Kind, Name string
}

func (s SideEffect) String() string { return fmt.Sprintf("%s %q", s.Kind, s.Name) }

// LoadSideEffects returns those that answer to SQL, which native does not speak: rules and
// statement triggers for changes of rows that are enabled for replicated changes. They are
// those of all tables in the database, which are few.
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
	return sideEffects(rows), nil
}

// LoadFiring returns what fires for changes that are not replicated ones to the server,
// beside what the publisher's own has done already: of all tables in the database, and of
// a partition also as of the tables above it.
func LoadFiring(querier Querier) ([]SideEffect, error) {
	// That of a deferrable unique constraint does nothing but check.
	rows, err := querier.Query(`
		SELECT DISTINCT n.nspname, c.relname, e.kind, e.name
		FROM (
			SELECT ev_class, 'rule', rulename FROM pg_catalog.pg_rewrite WHERE ev_enabled IN ('O', 'A')
			UNION ALL
			SELECT tgrelid, CASE WHEN tgisinternal THEN 'foreign key' ELSE 'trigger' END, coalesce(k.conname, tgname)
			FROM pg_catalog.pg_trigger LEFT JOIN pg_catalog.pg_constraint k ON tgisinternal AND k.oid = tgconstraint
			WHERE tgenabled IN ('O', 'A') AND (NOT tgisinternal OR k.contype = 'f')
		) e (relation, kind, name)
		CROSS JOIN LATERAL (
			SELECT e.relation UNION SELECT relid FROM pg_catalog.pg_partition_ancestors(e.relation)
		) a (relation)
		JOIN pg_catalog.pg_class c ON c.oid = a.relation AND c.relkind IN ('r', 'p')
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		ORDER BY 1, 2, 3, 4`)
	if err != nil {
		return nil, fmt.Errorf("look for rules, triggers and foreign keys: %w", err)
	}
	return sideEffects(rows), nil
}

func sideEffects(rows [][][]byte) []SideEffect {
	effects := make([]SideEffect, len(rows))
	for i, row := range rows {
		effects[i] = SideEffect{Schema: string(row[0]), Table: string(row[1]), Kind: string(row[2]), Name: string(row[3])}
	}
	return effects
}
