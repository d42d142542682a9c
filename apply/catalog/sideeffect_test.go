package catalog

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

func TestSideEffects(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `
		CREATE SCHEMA s; CREATE TABLE s.t (a int); CREATE TABLE s."U u" (a int) PARTITION BY LIST (a); CREATE VIEW s.v AS SELECT 1 AS a;
		CREATE FUNCTION s.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE RULE always AS ON DELETE TO s.t DO INSTEAD NOTHING; ALTER TABLE s.t ENABLE ALWAYS RULE always;
		CREATE RULE ordinary AS ON DELETE TO s.t DO INSTEAD NOTHING;
		CREATE TRIGGER "on replica" BEFORE INSERT OR TRUNCATE ON s."U u" EXECUTE FUNCTION s.f(); ALTER TABLE s."U u" ENABLE REPLICA TRIGGER "on replica";
		CREATE TRIGGER ordinary AFTER UPDATE ON s.t EXECUTE FUNCTION s.f();
		CREATE TRIGGER disabled AFTER UPDATE ON s.t EXECUTE FUNCTION s.f(); ALTER TABLE s.t DISABLE TRIGGER disabled;
		CREATE TRIGGER truncates AFTER TRUNCATE ON s.t EXECUTE FUNCTION s.f(); ALTER TABLE s.t ENABLE ALWAYS TRIGGER truncates;
		CREATE TRIGGER each_row AFTER DELETE ON s.t FOR EACH ROW EXECUTE FUNCTION s.f(); ALTER TABLE s.t ENABLE ALWAYS TRIGGER each_row`)
	effects, err := LoadSideEffects(querier(t, uri))
	require.NoError(t, err)
	require.Equal(t, []SideEffect{
		{Schema: "s", Table: "U u", Kind: "statement trigger", Name: "on replica"},
		{Schema: "s", Table: "t", Kind: "rule", Name: "always"},
	}, effects)
	require.Equal(t, `rule "always"`, effects[1].String())
}
