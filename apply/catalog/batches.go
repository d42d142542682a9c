package catalog

// Which tables take batches: several changes as one statement, and in any order. Those on
// which nothing notices it: no rule or trigger that fires in the session, on
// it or a partition, no constraint that is looked at later or row by row, and no function
// that may look at the table, where a statement shows it other rows than the changes
// would: it sees the table as it was before the statement, or, called by the check of a
// domain, before the first row, since that is when the arrays are read.
//
// Nobody can tell where a function looks, whatever it says of its volatility. So all are
// trusted that are part of PostgreSQL, or written in C as those of types and their
// operators are, and no other: none that the table, its partitions, indexes, checks,
// defaults and generated columns depend on, directly, through an operator, or by the
// check of a domain.

// family is the table c and its partitions, as p(oid). It locks no partition, of which
// there may be more than a transaction can lock.
const family = `p(oid) AS (
				SELECT c.oid
				UNION ALL
				SELECT i.inhrelid FROM p JOIN pg_catalog.pg_inherits i ON i.inhparent = p.oid WHERE c.relkind = 'p'
			)`

// uses is everything that the family depends on, as used(class, oid). A server sets up room
// for all that it expects to find there, needed or not. That conrelid is 0, as it is where
// contypid is not, keeps it from expecting a hundred thousand.
const uses = `used(class, oid) AS (
				SELECT o.class, o.oid FROM p CROSS JOIN LATERAL (
					SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, p.oid
					UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, indexrelid FROM pg_catalog.pg_index WHERE indrelid = p.oid
					UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, oid FROM pg_catalog.pg_constraint WHERE conrelid = p.oid AND contype = 'c'
					UNION ALL SELECT 'pg_catalog.pg_attrdef'::pg_catalog.regclass, oid FROM pg_catalog.pg_attrdef WHERE adrelid = p.oid
				) o(class, oid)
				UNION
				SELECT o.class, o.oid FROM used u CROSS JOIN LATERAL (
					SELECT refclassid::pg_catalog.regclass, refobjid FROM pg_catalog.pg_depend WHERE classid = u.class AND objid = u.oid
					UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, oid FROM pg_catalog.pg_constraint
						WHERE u.class = 'pg_catalog.pg_type'::pg_catalog.regclass AND conrelid = 0 AND contypid = u.oid
				) o(class, oid)
			)`

// fire are the settings of rules and triggers that fire in the session: those that are
// enabled for replicated changes, unless the role may not say that its changes are.
const fire = `('A', CASE pg_catalog.current_setting('session_replication_role') WHEN 'replica' THEN 'R'::"char" ELSE 'O' END)`

// noticedBy names something by which the table c does not take batches; NULL for nothing.
const noticedBy = `(WITH RECURSIVE ` + family + `, ` + uses + `
			SELECT 'rule "' || rulename || '"' FROM p JOIN pg_catalog.pg_rewrite ON ev_class = p.oid AND ev_enabled IN ` + fire + `
			UNION ALL
			SELECT coalesce('foreign key "' || k.conname || '"', 'trigger "' || tgname || '"')
			FROM p JOIN pg_catalog.pg_trigger ON tgrelid = p.oid AND tgenabled IN ` + fire + `
			LEFT JOIN pg_catalog.pg_constraint k ON tgisinternal AND k.oid = tgconstraint AND k.contype = 'f'
			WHERE NOT tgisinternal OR k.oid IS NOT NULL
			UNION ALL
			SELECT 'constraint "' || x.relname || '", which is deferrable or excludes'
			FROM p JOIN pg_catalog.pg_index i ON i.indrelid = p.oid AND (NOT i.indimmediate OR i.indisexclusion) JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
			UNION ALL
			SELECT 'function "' || f.proname || '", which may look at the table'
			FROM used u JOIN pg_catalog.pg_proc f ON f.oid = u.oid AND u.class = 'pg_catalog.pg_proc'::pg_catalog.regclass
			JOIN pg_catalog.pg_language l ON l.oid = f.prolang AND l.lanname NOT IN ('internal', 'c')
			LIMIT 1)`

// familyVersion is a hash of who wrote the catalog rows of what there is on the family.
const familyVersion = `pg_catalog.hash_array_extended(ARRAY(SELECT w.xid::pg_catalog.text::pg_catalog.int8 FROM p CROSS JOIN LATERAL (
				SELECT xmin FROM pg_catalog.pg_rewrite WHERE ev_class = p.oid
				UNION ALL SELECT xmin FROM pg_catalog.pg_trigger WHERE tgrelid = p.oid
				UNION ALL SELECT xmin FROM pg_catalog.pg_index WHERE indrelid = p.oid
				UNION ALL SELECT xmin FROM pg_catalog.pg_constraint WHERE conrelid = p.oid
				UNION ALL SELECT xmin FROM pg_catalog.pg_attrdef WHERE adrelid = p.oid
				UNION ALL SELECT p.oid::pg_catalog.text::pg_catalog.xid
			) w(xid) ORDER BY 1), 0)::pg_catalog.text`

// batchesVersion is familyVersion where table c depends on nothing else that could come to
// notice: a type or a function that somebody made may change beside the table. It is
// empty else.
const batchesVersion = `(WITH RECURSIVE ` + family + `, ` + uses + `
			SELECT CASE WHEN NOT EXISTS (SELECT FROM used WHERE class NOT IN ('pg_catalog.pg_class', 'pg_catalog.pg_constraint', 'pg_catalog.pg_attrdef', 'pg_catalog.pg_namespace'))
				THEN ` + familyVersion + ` ELSE '' END)`

// PinBatchesSQL and PinUnnoticedSQL fail with SQLSTATE 22P02 when the table with the OID $1
// may no longer take batches: the former for a table whose Version has Batches, which are
// $2, the latter for any other. Like [PinSQL] they follow a statement that has locked the
// table. That one does not see what comes and goes beside the table's own catalog row.
//
// They are not one statement, since a server sets up all parts of a statement each time
// that it runs, whichever come to be needed, and those of the latter are large.
const (
	PinBatchesSQL = `SELECT (CASE WHEN (SELECT $2 = (WITH RECURSIVE ` + family + ` SELECT ` + familyVersion + `)
		FROM pg_catalog.pg_class c WHERE c.oid = $1::pg_catalog.oid)
	THEN '1' ELSE 'the table was changed' END)::pg_catalog.int4`
	PinUnnoticedSQL = `SELECT (CASE WHEN (SELECT ` + noticedBy + ` IS NULL FROM pg_catalog.pg_class c WHERE c.oid = $1::pg_catalog.oid)
	THEN '1' ELSE 'the table was changed' END)::pg_catalog.int4`
)
