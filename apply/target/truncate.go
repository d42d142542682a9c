package target

import (
	"fmt"
	"strings"

	"pgapply/decoder"
)

// truncate empties the tables in one statement, so that foreign keys between them
// are no obstacle. CASCADE is never repeated: the publisher expanded it, and here
// it would empty tables that are not replicated.
func (s *Session) truncate(relations []*decoder.Relation, message *decoder.Truncate) error {
	var emptied []*table
	var apart []*decoder.Relation
	for _, relation := range relations {
		t, err := s.table(relation)
		if err != nil {
			return s.failure(decoder.TypeTruncate, relation, err)
		}
		if t.bound != nil {
			emptied = append(emptied, t)
			continue
		}
		s.outcome.NotMember++
		if s.options.Apart != nil && s.options.Apart(relation.Namespace, relation.Name) {
			apart = append(apart, relation)
		}
	}
	if len(emptied) == 0 {
		return nil
	}
	s.stale = true // for who rolls back, and has bound them anew meanwhile
	named := emptied[len(emptied)-1]
	references := make([]string, len(emptied))
	for i, t := range emptied {
		references[i] = reference(t.bound)
	}
	sql := "TRUNCATE " + strings.Join(references, ", ")
	if message.RestartIdentity {
		sql += " RESTART IDENTITY"
	}
	refused, err := s.refusesTruncate(emptied, apart)
	if refused && err == nil {
		sql = deleteAll(references)
		err = s.beforeDeleteAll(emptied, references, message.RestartIdentity)
	}
	if err == nil {
		p := s.prepareStatement(named, opTruncate, statement{sql: sql}, nil)
		if err = s.execute(named, opTruncate, p, nil, nil); err == nil {
			s.pipe.Deallocate(p.name)
		}
	}
	if err != nil {
		return s.failure(decoder.TypeTruncate, named.relation, err)
	}
	// TRUNCATE changes a table's catalog row, and those of its partitions, which would look
	// like somebody else's doing to pin: the next change binds the table anew.
	for _, t := range emptied {
		s.forget(t)
	}
	s.foreseen = nil
	return nil
}

// refusesTruncate tells whether the target would not truncate the tables since a table
// refers to them that the publisher has truncated with them, and that is emptied another
// way: it is being copied, or the others are. Neither would ever get past that.
func (s *Session) refusesTruncate(emptied []*table, apart []*decoder.Relation) (bool, error) {
	if len(apart) == 0 {
		return false, nil
	}
	names := make([]string, len(apart))
	for i, relation := range apart {
		names[i] = "(" + literal(relation.Namespace) + ", " + literal(relation.Name) + ")"
	}
	answers, err := catalogs{s}.QueryAll([]string{`
		SELECT EXISTS (SELECT FROM pg_catalog.pg_constraint k
			JOIN pg_catalog.pg_class c ON c.oid = k.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			WHERE k.contype = 'f' AND k.confrelid = ANY ($1::pg_catalog.oid[]) AND (n.nspname, c.relname) IN (` + strings.Join(names, ", ") + `))`},
		oids(emptied))
	if err != nil {
		return false, err
	}
	return string(answers[0][0][0]) == "t", nil
}

// beforeDeleteAll does what TRUNCATE would do besides removing the rows.
func (s *Session) beforeDeleteAll(emptied []*table, references []string, restart bool) error {
	if err := s.utility(opOther, "LOCK TABLE "+strings.Join(references, ", ")+" IN SHARE ROW EXCLUSIVE MODE"); err != nil || !restart {
		return err
	}
	answers, err := catalogs{s}.QueryAll([]string{`
		SELECT pg_catalog.format('ALTER SEQUENCE %I.%I RESTART', n.nspname, c.relname) FROM pg_catalog.pg_depend d
		JOIN pg_catalog.pg_class c ON c.oid = d.objid AND c.relkind = 'S' JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
			AND d.refobjid = ANY ($1::pg_catalog.oid[]) AND d.deptype IN ('a', 'i')`}, oids(emptied))
	if err != nil {
		return err
	}
	for _, row := range answers[0] {
		if err := s.utility(opOther, string(row[0])); err != nil {
			return err
		}
	}
	return nil
}

// deleteAll removes all rows of tables. Foreign keys are not checked for it in a session
// that replicates.
func deleteAll(references []string) string {
	var parts []string
	for i, name := range references {
		parts = append(parts, fmt.Sprintf("t%d AS (DELETE FROM %s)", i, name))
	}
	return "WITH " + strings.Join(parts, ", ") + " SELECT"
}

func oids(tables []*table) string {
	list := make([]string, len(tables))
	for i, t := range tables {
		list[i] = fmt.Sprint(t.bound.OID)
	}
	return "{" + strings.Join(list, ",") + "}"
}
