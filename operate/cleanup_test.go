package operate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/cluster"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
	"pgapply/internal/source"
	"pgapply/origin"
)

func (b *bed) cleanup(change ...func(*CleanupOptions)) (*Removal, error) {
	options := CleanupOptions{Endpoints: b.ends, Confirmed: true}
	for _, c := range change {
		c(&options)
	}
	return Cleanup(b.t.Context(), options)
}

func keepSlot(o *CleanupOptions) { o.KeepSlot = true }

func unconfirmed(o *CleanupOptions) { o.Confirmed = false }

func TestCleanupTakesEverythingAway(t *testing.T) {
	for _, majors := range [][2]int{{14, cluster.NewestMajor}, {cluster.NewestMajor, 14}} {
		t.Run(fmt.Sprintf("publisher %d, target %d", majors[0], majors[1]), func(t *testing.T) {
			b := newBed(t, pgtest.Start(t, pgtest.OnMajor(majors[0])), pgtest.Start(t, pgtest.OnMajor(majors[1])))
			b.complete()
			pgtest.Exec(t, b.target, `create table t (a int); insert into t values (1)`)
			require.Equal(t, "1 slots, 2 origins, 1 schemas", b.leftovers())
			removal, err := b.cleanup()
			require.NoError(t, err)
			require.Equal(t, []string{
				fmt.Sprintf("dropped replication slot %q on the publisher", b.slot),
				fmt.Sprintf("dropped replication origin %q", b.origin(0)),
				fmt.Sprintf("dropped replication origin %q", b.origin(1)),
				`deleted the state of subscription "orders"`,
				"dropped schema pgapply",
			}, removal.Done)
			require.Empty(t, removal.Remains)
			require.Equal(t, "0 slots, 0 origins, 0 schemas", b.leftovers())
			require.Equal(t, "1", pgtest.Query(t, b.target, `select a from t`), "replicated rows stay")

			removal, err = b.cleanup()
			require.NoError(t, err)
			require.Len(t, removal.Done, 1)
			require.Contains(t, removal.Done[0], "has no state of pgapply: nothing to do")
		})
	}
}

// A run may be killed after any of its steps, and a cleanup too.
func TestCleanupOfPartialStates(t *testing.T) {
	b := sharedBed(t)
	type steps []func(*state.Store)
	for name, prepare := range map[string]steps{
		"schema only":             {},
		"runner row":              {b.startRunner},
		"origins named":           {b.nameOrigins},
		"origins created":         {b.nameOrigins, b.createOrigins},
		"slot being created":      {b.beginSlot},
		"slot created unrecorded": {b.beginSlot, b.createSlot},
		"slot recorded":           {b.beginSlot, b.createSlot, b.recordSlot},
		"slot gone":               {b.createOrigins, b.beginSlot, b.recordSlot},
		"origins gone":            {b.createOrigins, b.dropOrigins, b.beginSlot, b.createSlot, b.recordSlot},
		"tables only":             {b.registerTables},
		"complete": {
			b.startRunner, b.nameOrigins, b.createOrigins, b.beginSlot, b.createSlot, b.recordSlot, b.registerTables,
		},
	} {
		store := b.store("orders")
		for _, step := range prepare {
			step(store)
		}
		removal, err := b.cleanup()
		require.NoError(t, err, name)
		require.Equal(t, "dropped schema pgapply", removal.Done[len(removal.Done)-1], name)
		require.Equal(t, "0 slots, 0 origins, 0 schemas", b.leftovers(), name)
	}
}

func TestCleanupGoesOnWhereItFailed(t *testing.T) {
	b := sharedBed(t)
	b.complete()
	holder, _ := b.control("orders")
	_, err := holder.Exec(t.Context(), `SELECT pg_replication_origin_session_setup($1)`, b.origin(1))
	require.NoError(t, err)

	removal, err := b.cleanup()
	requireClass(t, err, apply.Refused, b.origin(1), fmt.Sprintf("PID %d", holder.PgConn().PID()), "end the session")
	require.Len(t, removal.Done, 2, "the slot and the first origin")
	require.Equal(t, "0 slots, 1 origins, 1 schemas", b.leftovers())

	b.disconnect(holder)
	pgtest.WaitFor(t, b.target, `select count(*) from pg_stat_activity where pid = $1`, "0", holder.PgConn().PID())
	removal, err = b.cleanup()
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("replication slot %q is not on the publisher any more", b.slot), removal.Done[0])
	require.Equal(t, "0 slots, 0 origins, 0 schemas", b.leftovers())
}

// The slot of tables that were being copied goes with the subscription's.
func TestCleanupDropsTheSlotOfTheCopy(t *testing.T) {
	b := sharedBed(t)
	store := b.complete()
	require.NoError(t, store.BeginSet(t.Context(), b.slot+"_sync"))
	require.NoError(t, store.MakeOrigin(t.Context(), state.Origin{Name: origin.CopyName("orders", b.where.DatabaseOID, 0), Worker: -1}))
	removal, err := b.cleanup(keepSlot, func(o *CleanupOptions) { o.Source = "" }, unconfirmed)
	requireClass(t, err, apply.Refused, "--yes")
	require.NotContains(t, removal.Plan(), "slot")
	pgtest.Exec(t, b.source, `select pg_create_logical_replication_slot('`+b.slot+`_sync', 'pgoutput')`)
	require.Equal(t, "2 slots, 3 origins, 1 schemas", b.leftovers())
	_, err = b.cleanup(func(o *CleanupOptions) { o.Source = nowhere(t) })
	requireClass(t, err, apply.Source, fmt.Sprintf("nothing was removed: slot %q, %q, 3 replication origins", b.slot, b.slot+"_sync"), b.slot+"_sync')")

	removal, err = b.cleanup(unconfirmed)
	requireClass(t, err, apply.Refused, "--yes")
	require.Contains(t, removal.Plan(), fmt.Sprintf("replication slot %q on the publisher, of tables that are being copied", b.slot+"_sync"))
	removal, err = b.cleanup()
	require.NoError(t, err)
	require.Contains(t, removal.Done, fmt.Sprintf("dropped replication slot %q on the publisher", b.slot+"_sync"))
	require.Contains(t, removal.Done, fmt.Sprintf("dropped replication origin %q", origin.CopyName("orders", b.where.DatabaseOID, 0)))
	require.Equal(t, "0 slots, 0 origins, 0 schemas", b.leftovers())
}

func TestCleanupWantsConfirmation(t *testing.T) {
	b := sharedBed(t)
	b.complete()
	removal, err := b.cleanup(unconfirmed)
	requireClass(t, err, apply.Refused, `cleanup of subscription "orders" is not confirmed`, "--yes")
	require.Empty(t, removal.Done)
	require.Equal(t, fmt.Sprintf("replication slot %q on the publisher; replication origins %s, %s on the target; "+
		`the state of subscription "orders" (1 table). Replicated rows stay.`, b.slot, b.origin(0), b.origin(1)), removal.Plan())
	removal, err = b.cleanup(unconfirmed, keepSlot)
	requireClass(t, err, apply.Refused, "--yes")
	require.NotContains(t, removal.Plan(), "slot")
	require.Equal(t, "1 slots, 2 origins, 1 schemas", b.leftovers())
}

func TestCleanupRefusesWhileARunnerLives(t *testing.T) {
	b := sharedBed(t)
	store := b.complete()
	_, err := store.TryLock(t.Context())
	require.NoError(t, err)
	_, err = b.cleanup()
	requireClass(t, err, apply.Refused, `subscription "orders" is running: process 4242 on here, server process`, "(pgapply:orders:control)", "stop the runner")
	require.Equal(t, "1 slots, 2 origins, 1 schemas", b.leftovers())
	require.NoError(t, store.Unlock(t.Context()))
	_, err = b.cleanup()
	require.NoError(t, err)
}

func TestCleanupWithoutThePublisher(t *testing.T) {
	b := sharedBed(t)
	b.complete()
	before := b.leftovers()

	// Unreachable: nothing changes, and the error says how to go on.
	_, err := b.cleanup(func(o *CleanupOptions) { o.Source = nowhere(t) })
	byHand := fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", b.slot)
	requireClass(t, err, apply.Source, fmt.Sprintf("nothing was removed: slot %q, 2 replication origins and the state remain", b.slot), "--keep-slot", byHand)
	require.Equal(t, before, b.leftovers())
	_, err = b.cleanup(func(o *CleanupOptions) { o.Source = "" })
	requireClass(t, err, apply.Configuration, "no publisher given", "set --source", byHand)
	require.Equal(t, before, b.leftovers())

	// Without it: the slot stays, and the statement to drop it is told and works.
	removal, err := b.cleanup(keepSlot, func(o *CleanupOptions) { o.Source = "" })
	require.NoError(t, err)
	require.Equal(t, "1 slots, 0 origins, 0 schemas", b.leftovers())
	require.Len(t, removal.Remains, 1)
	_, statement, found := strings.Cut(removal.Remains[0], "until it is dropped: ")
	require.True(t, found)
	pgtest.Exec(t, b.source, statement)
	require.Equal(t, "0 slots, 0 origins, 0 schemas", b.leftovers())
}

// Only the slot that the state names is dropped, and only where it was recorded.
func TestCleanupDropsNoForeignSlot(t *testing.T) {
	prepare := func(t *testing.T, slotSQL string) *bed {
		b := sharedBed(t)
		store := b.store("orders")
		b.createOrigins(store)
		b.beginSlot(store)
		b.recordSlot(store)
		if slotSQL != "" {
			pgtest.Exec(t, b.source, fmt.Sprintf(slotSQL, b.slot))
		}
		return b
	}
	t.Run("another plugin", func(t *testing.T) {
		b := prepare(t, `select pg_create_logical_replication_slot('%s', 'test_decoding')`)
		_, err := b.cleanup()
		requireClass(t, err, apply.Refused, "is not the recorded one", `plugin "test_decoding"`, "--keep-slot")
		require.Equal(t, "1 slots, 2 origins, 1 schemas", b.leftovers())
	})
	t.Run("physical", func(t *testing.T) {
		b := prepare(t, `select pg_create_physical_replication_slot('%s')`)
		t.Cleanup(func() { pgtest.Query(t, b.source, `select pg_drop_replication_slot($1)`, b.slot) })
		_, err := b.cleanup()
		requireClass(t, err, apply.Refused, "it is physical")
	})
	t.Run("of another database", func(t *testing.T) {
		b := prepare(t, "")
		pgtest.Exec(t, pgtest.Database(t, b.publisher), fmt.Sprintf(`select pg_create_logical_replication_slot('%s', 'pgoutput')`, b.slot))
		_, err := b.cleanup()
		requireClass(t, err, apply.Refused, "is not the recorded one")
		require.Equal(t, "1", pgtest.Query(t, b.source, `select count(*) from pg_replication_slots where slot_name = $1`, b.slot))
	})
	t.Run("another database of the publisher", func(t *testing.T) {
		b := prepare(t, `select pg_create_logical_replication_slot('%s', 'pgoutput')`)
		_, err := b.cleanup(func(o *CleanupOptions) { o.Source = pgtest.Database(t, b.publisher) })
		requireClass(t, err, apply.Refused, "--source is database", "was recorded in database")
		require.Equal(t, "1 slots, 2 origins, 1 schemas", b.leftovers())
	})
	t.Run("another server", func(t *testing.T) {
		b := prepare(t, `select pg_create_logical_replication_slot('%s', 'pgoutput')`)
		// With a database and a slot of the same names.
		pgtest.Exec(t, b.server.URI("postgres"), `create database `+b.identity.Database)
		twin := b.server.URI(b.identity.Database)
		pgtest.Exec(t, twin, fmt.Sprintf(`select pg_create_logical_replication_slot('%s', 'pgoutput')`, b.slot))
		_, err := b.cleanup(func(o *CleanupOptions) { o.Source = twin })
		requireClass(t, err, apply.Refused, "of system "+b.where.SystemID, "of system "+b.identity.SystemID)
		require.Equal(t, "1 slots, 2 origins, 1 schemas", b.leftovers())
		pgtest.Exec(t, twin, fmt.Sprintf(`select pg_drop_replication_slot('%s')`, b.slot))
		pgtest.Exec(t, b.server.URI("postgres"), `drop database `+b.identity.Database)
	})
	t.Run("in use", func(t *testing.T) {
		b := prepare(t, `select pg_create_logical_replication_slot('%s', 'pgoutput')`)
		pgtest.Exec(t, b.source, `create publication p`)
		conn, err := source.Connect(t.Context(), source.Options{URI: b.source, ApplicationName: "somebody"})
		require.NoError(t, err)
		stream, err := conn.StartStream(t.Context(), source.StreamOptions{Slot: b.slot, Publications: []string{"p"}, Streaming: "off", Origin: "any"})
		require.NoError(t, err)
		_, err = b.cleanup()
		requireClass(t, err, apply.Refused, "is in use by", "somebody", "wal_sender_timeout")
		require.NoError(t, stream.Close())
		pgtest.WaitFor(t, b.source, `select active from pg_replication_slots where slot_name = $1`, "f", b.slot)
		_, err = b.cleanup()
		require.NoError(t, err)
	})
	t.Run("unnamed", func(t *testing.T) {
		b := prepare(t, `select pg_create_logical_replication_slot('%s', 'pgoutput')`)
		pgtest.Exec(t, b.source, `select pg_create_logical_replication_slot('`+b.slot+`x', 'pgoutput')`)
		_, err := b.cleanup()
		require.NoError(t, err)
		require.Equal(t, "1 slots, 0 origins, 0 schemas", b.leftovers())
	})
}

// An origin that was dropped by hand and made again is somebody else's.
func TestCleanupDropsNoForeignOrigin(t *testing.T) {
	b := sharedBed(t)
	b.complete()
	pgtest.Query(t, b.target, `select pg_replication_origin_drop($1)`, b.origin(0))
	pgtest.Query(t, b.target, `select pg_replication_origin_create($1)`, "taken by another "+b.slot)
	t.Cleanup(func() { pgtest.Query(t, b.target, `select pg_replication_origin_drop($1)`, "taken by another "+b.slot) })
	pgtest.Query(t, b.target, `select pg_replication_origin_create($1)`, b.origin(0))
	removal, err := b.cleanup()
	require.NoError(t, err)
	require.Contains(t, removal.Done, fmt.Sprintf("replication origin %q is not on the target any more", b.origin(0)))
	require.Equal(t, "0 slots, 1 origins, 0 schemas", b.leftovers())
}

func TestCleanupOfACopiedTarget(t *testing.T) {
	b := sharedBed(t)
	store := b.store("orders")
	b.createOrigins(store)
	elsewhere := b.subscription()
	elsewhere.TargetDatabaseOID++
	require.NoError(t, store.AdoptSlot(t.Context(), elsewhere, lsn.LSN(1)))
	b.createSlot(store)

	_, err := b.cleanup()
	requireClass(t, err, apply.Refused, "was written on another server or database", "belongs to the original", "--keep-slot")
	require.Equal(t, "1 slots, 2 origins, 1 schemas", b.leftovers())
	_, err = b.cleanup(keepSlot)
	require.NoError(t, err)
	require.Equal(t, "1 slots, 2 origins, 0 schemas", b.leftovers(), "slot and origins are the original's")
}

// prepare leaves a prepared transaction as a runner does, which writes a row of table t,
// and returns its name.
func (b *bed) prepare(row, xid int) string {
	gid := fmt.Sprintf("pgapply_orders_%d_%d_1A2B", b.where.DatabaseOID, xid)
	pgtest.Exec(b.t, b.target, fmt.Sprintf(`begin; insert into t values (%d);
		insert into pgapply.progress (subscription, position, gid) values ('orders', '0/1A2B', '%s'); prepare transaction '%s'`, row, gid, gid))
	return gid
}

func TestCleanupOfPreparedTransactions(t *testing.T) {
	for _, end := range []struct{ action, done, rows string }{
		{CommitPrepared, "committed prepared transaction ", "7\n8"},
		{RollbackPrepared, "rolled back prepared transaction ", ""},
	} {
		b := sharedBed(t)
		b.complete()
		pgtest.Exec(t, b.target, `create table t (a int)`)
		gid := b.prepare(7, 744)
		// Somebody else's, although the name begins the same.
		stranger := fmt.Sprintf("pgapply_orders_%d_1_744_1A2B", b.where.DatabaseOID)
		pgtest.Exec(t, b.target, `begin; insert into t values (99); prepare transaction '`+stranger+`'`)
		for _, change := range []func(*CleanupOptions){func(*CleanupOptions) {}, unconfirmed} {
			_, err := b.cleanup(change)
			requireClass(t, err, apply.Refused, "has prepared transactions on the target: "+gid+" (transaction 744, finished at 0/1A2B, since 2", "--prepared=commit or --prepared=rollback",
				"SELECT pg_xact_status('744')", "COMMIT PREPARED '"+gid+"' or ROLLBACK PREPARED '"+gid+"'")
		}
		report, err := ReadStatus(t.Context(), b.ends)
		require.NoError(t, err)
		require.Equal(t, 1, report.Prepared)
		require.Contains(t, report.Text(), "prepared      1 transaction, the oldest since 2")

		prepared := func(o *CleanupOptions) { o.Prepared = end.action }
		removal, err := b.cleanup(prepared, unconfirmed)
		requireClass(t, err, apply.Refused, "not confirmed")
		require.Contains(t, removal.Plan(), "prepared transactions on the target, by ")
		require.Contains(t, removal.Plan(), gid)
		require.Equal(t, "1 slots, 2 origins, 1 schemas", b.leftovers())
		second := b.prepare(8, 745)
		removal, err = b.cleanup(prepared)
		require.NoError(t, err)
		require.Equal(t, []string{end.done + gid, end.done + second}, removal.Done[1:3])
		require.Equal(t, "0 slots, 0 origins, 0 schemas", b.leftovers())
		require.Equal(t, end.rows, pgtest.Query(t, b.target, `select a from t order by a`))
		require.Equal(t, stranger, pgtest.Query(t, b.target, `select gid from pg_prepared_xacts where database = current_database()`))
	}
}

// What is prepared may be all that is left of a subscription.
func TestCleanupOfNothingButPreparedTransactions(t *testing.T) {
	b := sharedBed(t)
	gid := fmt.Sprintf("pgapply_orders_%d_744_1A2B", b.where.DatabaseOID)
	pgtest.Exec(t, b.target, `create table t (a int)`, `begin; insert into t values (1); prepare transaction '`+gid+`'`)
	_, err := b.cleanup()
	requireClass(t, err, apply.Refused, gid, "--prepared")
	rollback := func(o *CleanupOptions) { o.Prepared = RollbackPrepared }
	removal, err := b.cleanup(rollback, unconfirmed)
	requireClass(t, err, apply.Refused, "not confirmed")
	require.Equal(t, "prepared transactions on the target, by rolling them back: "+gid, strings.Split(removal.Plan(), " (")[0])
	removal, err = b.cleanup(rollback)
	require.NoError(t, err)
	require.Equal(t, []string{"rolled back prepared transaction " + gid}, removal.Done)
}

func TestCleanupLeavesOtherSubscriptions(t *testing.T) {
	b := sharedBed(t)
	b.complete()
	other := b.subscription()
	other.SlotName = "other"
	require.NoError(t, b.store("other").AdoptSlot(t.Context(), other, lsn.LSN(1)))
	removal, err := b.cleanup()
	require.NoError(t, err)
	require.Contains(t, removal.Done, "kept schema pgapply: other subscriptions use it (1)")
	require.Equal(t, "other", pgtest.Query(t, b.target, `select name from pgapply.subscription`))

	removal, err = b.cleanup()
	require.NoError(t, err, "again")
	require.Contains(t, removal.Done, `the target has no state of subscription "orders"`)
}

// A name that is mistyped announces nothing, and names what goes by it elsewhere.
func TestCleanupOfTheUnknown(t *testing.T) {
	b := sharedBed(t)
	b.complete()
	other := func(o *CleanupOptions) { o.Name = b.slot } // its slot exists, but not in its state
	removal, err := b.cleanup(unconfirmed, other)
	requireClass(t, err, apply.Refused, fmt.Sprintf(`knows no subscription %q, only "orders"; replication slot %q on the publisher`, b.slot, b.slot), "--name")
	require.Nil(t, removal)
	removal, err = b.cleanup(unconfirmed, other, keepSlot)
	requireClass(t, err, apply.Refused, `only "orders"`)
	require.NotContains(t, err.Error(), "slot")
	require.Nil(t, removal)

	removal, err = b.cleanup(other)
	require.NoError(t, err, "nothing is left to do")
	require.Equal(t, fmt.Sprintf("the target has no state of subscription %q", b.slot), removal.Done[0])
	require.Len(t, removal.Remains, 1)
	require.Contains(t, removal.Remains[0], "SELECT pg_drop_replication_slot('"+b.slot+"')")
	require.Equal(t, "1 slots, 2 origins, 1 schemas", b.leftovers())
}

func TestCleanupByARoleWithoutTheRightToDropOrigins(t *testing.T) {
	publisher, server := pgtest.Shared(t)
	pgtest.Exec(t, server.URI("postgres"), `create role worker login`)
	t.Cleanup(func() { pgtest.Exec(t, server.URI("postgres"), `drop role worker`) })
	b := newBed(t, publisher, server)
	pgtest.Exec(t, b.target, `create schema pgapply authorization worker`)
	administrator := b.target
	b.target = as(t, b.target, "worker")
	store := b.store("orders")
	b.target = administrator
	b.createOrigins(store)
	_, err := b.cleanup(func(o *CleanupOptions) { o.Target = as(t, b.target, "worker") })
	requireClass(t, err, apply.Refused, "drop replication origin", "GRANT EXECUTE ON FUNCTION pg_catalog.pg_replication_origin_drop(text)")
	pgtest.Exec(t, b.target, `grant execute on function pg_catalog.pg_replication_origin_drop(text) to worker`)
	_, err = b.cleanup(func(o *CleanupOptions) { o.Target = as(t, b.target, "worker") })
	require.NoError(t, err)
	require.Equal(t, "0 slots, 0 origins, 0 schemas", b.leftovers())
}

func TestTargetsThatCannotBeCleaned(t *testing.T) {
	b := sharedBed(t)
	for name, test := range map[string]struct {
		target string
		class  apply.Class
		part   string
	}{
		"unreachable":  {nowhere(t), apply.Target, "connect to the target"},
		"malformed":    {"postgres://h:port/d", apply.Configuration, "connection string cannot be used"},
		"no database":  {b.server.URI("nonexistent"), apply.Target, "nonexistent"},
		"unknown role": {as(t, b.target, "nobody at all"), apply.Target, "nobody at all"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.cleanup(func(o *CleanupOptions) { o.Target = test.target })
			requireClass(t, err, test.class, test.part)
			_, err = ReadStatus(t.Context(), Endpoints{Name: "orders", Target: test.target})
			requireClass(t, err, test.class, test.part)
		})
	}
	t.Run("newer schema", func(t *testing.T) {
		b.complete()
		pgtest.Exec(t, b.target, `update pgapply.version set version = version + 1`)
		_, err := b.cleanup()
		requireClass(t, err, apply.Refused, "knows versions up to", "upgrade this pgapply")
		_, err = ReadStatus(t.Context(), b.ends)
		requireClass(t, err, apply.Refused, "knows versions up to", "upgrade this pgapply")
		require.Equal(t, "1 slots, 2 origins, 1 schemas", b.leftovers())
	})
}
