package source

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

func TestTransactions(t *testing.T) {
	forEachMajor(t, []int{10, 14, 18}, func(t *testing.T, server *cluster.Cluster) {
		uri := pgtest.Database(t, server)
		database := pgtest.Query(t, uri, `select current_database()`)
		pgtest.Exec(t, uri, `create table t (a int primary key)`, `begin; insert into t values (0); prepare transaction 'of `+database+`'`)
		reader, writer, waiter := pgtest.Open(t, uri), pgtest.Open(t, uri+"&application_name=job"), pgtest.Open(t, uri)
		reader.Exec(`begin isolation level repeatable read`, `select from t`)
		writer.Exec(`begin`, `savepoint a`, `insert into t values (1)`, `savepoint b`, `insert into t values (2)`)
		waits := make(chan struct{})
		go func() {
			defer close(waits)
			waiter.Exec(`insert into t values (1)`)
		}()
		pgtest.WaitFor(t, uri, `select wait_event_type from pg_stat_activity where query = 'insert into t values (1)' and pid <> $1`, "Lock", writer.PID())
		// A role that may not look at other roles' sessions sees at least whose they are.
		role := "limited_" + database[len(database)-8:]
		pgtest.Exec(t, uri, `create role `+role+` login replication`, `grant connect on database `+database+` to `+role)
		defer pgtest.Exec(t, uri, `drop owned by `+role, `drop role `+role)

		for _, limited := range []bool{false, true} {
			as := uri
			if limited {
				as = strings.Replace(uri, "postgres@", role+"@", 1)
			}
			conn := connectTo(t, as)
			all, err := conn.Transactions(t.Context(), waiter.PID())
			require.NoError(t, err)
			var here []Transaction
			for _, transaction := range all {
				if transaction.Database == database && transaction.PID != int(waiter.PID()) {
					require.Less(t, transaction.Age, time.Minute)
					require.Equal(t, limited && transaction.PID != 0, transaction.Age < 0)
					transaction.Age = 0
					here = append(here, transaction)
				}
			}
			prepared := Transaction{GID: "of " + database, User: "postgres", Database: database}
			writes := Transaction{PID: int(writer.PID()), User: "postgres", Database: database, Application: "job", Blocks: true}
			if !limited {
				writes.State = "idle in transaction"
			}
			require.ElementsMatch(t, []Transaction{prepared, writes}, here)
			require.NoError(t, conn.Close())
		}
		writer.Exec(`rollback`)
		<-waits
	})
}

func TestTransactionText(t *testing.T) {
	for want, transaction := range map[string]Transaction{
		`process 7 (application "psql", role me, database d, idle in transaction, for 3h12m)`: {
			PID: 7, Application: "psql", User: "me", Database: "d", State: "idle in transaction", Age: 3*time.Hour + 12*time.Minute + 5*time.Second,
		},
		`process 8 (role me, database d)`: {PID: 8, User: "me", Database: "d"},
		`process 9`:                       {PID: 9},
		`prepared transaction "g'1" (role me, database d, for 12m)`:       {GID: "g'1", User: "me", Database: "d", Age: 12*time.Minute + time.Second},
		fmt.Sprintf(`prepared transaction %q (database d, for 45s)`, "g"): {GID: "g", Database: "d", Age: 45*time.Second + 7},
	} {
		require.Equal(t, want, transaction.String())
	}
}
