package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/source"
)

// CleanupOptions say what to take away.
type CleanupOptions struct {
	Endpoints
	// KeepSlot leaves the publisher alone; Source may be empty then.
	KeepSlot bool
	// Prepared says what becomes of the subscription's prepared transactions on the
	// target: CommitPrepared or RollbackPrepared. Empty refuses where there are some.
	Prepared string
	// Confirmed says that the operator agreed. Without it nothing is changed, and
	// the Removal that comes with the error says what would be.
	Confirmed bool
}

// What can become of prepared transactions.
const (
	CommitPrepared   = "commit"
	RollbackPrepared = "rollback"
)

// Removal is what a cleanup takes away, or took away.
type Removal struct {
	Subscription string `json:"subscription"`
	// Slot is the recorded slot, empty when there is none or it is to be kept.
	Slot string `json:"slot,omitempty"`
	// SyncSlot is that of tables that are being copied, likewise.
	SyncSlot string   `json:"sync_slot,omitempty"`
	Origins  []string `json:"origins"`
	// Prepared are the prepared transactions on the target, the oldest first, which are
	// committed or rolled back as the options say.
	Prepared []state.Prepared `json:"-"`
	Tables   int              `json:"tables"`
	// Conflicts is how many are recorded.
	Conflicts int64 `json:"conflicts"`
	// Done is what happened, one line each; empty before a confirmation.
	Done []string `json:"done"`
	// Remains is what was left on purpose and how to remove it by hand.
	Remains []string `json:"remains"`

	end       string // of the prepared transactions
	stateless bool   // the target has no state of pgapply
}

// Plan says in one sentence what would be taken away.
func (r *Removal) Plan() string {
	parts := []string{}
	if r.Slot != "" {
		parts = append(parts, fmt.Sprintf("replication slot %q on the publisher", r.Slot))
	}
	if r.SyncSlot != "" {
		parts = append(parts, fmt.Sprintf("replication slot %q on the publisher, of tables that are being copied", r.SyncSlot))
	}
	if len(r.Origins) > 0 {
		parts = append(parts, fmt.Sprintf("replication origins %s on the target", strings.Join(r.Origins, ", ")))
	}
	if len(r.Prepared) > 0 {
		parts = append(parts, fmt.Sprintf("prepared transactions on the target, %s: %s", r.decision(), apply.Names(r.Prepared)))
	}
	if !r.stateless {
		what := counted(int64(r.Tables), "table")
		if r.Conflicts > 0 {
			what += ", " + counted(r.Conflicts, "recorded conflict")
		}
		parts = append(parts, fmt.Sprintf("the state of subscription %q (%s)", r.Subscription, what))
	}
	return strings.Join(parts, "; ") + ". Replicated rows stay."
}

func (r *Removal) did(format string, arguments ...any) {
	r.Done = append(r.Done, fmt.Sprintf(format, arguments...))
}

func (r *Removal) remains(format string, arguments ...any) {
	r.Remains = append(r.Remains, fmt.Sprintf(format, arguments...))
}

// Cleanup takes a subscription away: its slots on the publisher, then its prepared
// transactions and its replication origins, then its state on the target; with the
// last subscription the schema pgapply. Rows that were replicated stay. In this order a cleanup
// that failed half-way can be run again, and the state names what is left to the
// end. Where nothing is left to do it succeeds, and where the state does not know
// the subscription it wants no plan confirmed but says so.
//
// It refuses while a runner lives, while the target holds prepared transactions of
// the subscription and the options do not say how they end, and where slot or target are not the recorded ones. When the publisher cannot
// be reached it changes nothing and says how to go on without it.
func Cleanup(ctx context.Context, options CleanupOptions) (*Removal, error) {
	target, err := options.openTarget(ctx)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target.conn)
	if err := target.writable(); err != nil {
		return nil, err
	}
	removal := &Removal{Subscription: options.Name, Origins: []string{}, Done: []string{}, Remains: []string{}, end: options.Prepared}
	if err := removal.findPrepared(ctx, target); err != nil {
		return nil, err
	}
	store, err := state.OpenExisting(ctx, target.conn, options.Name)
	if errors.Is(err, state.ErrNoSchema) {
		removal.stateless = true
		if len(removal.Prepared) > 0 {
			return removal, removal.alone(ctx, target, options)
		}
		removal.did("database %q on the target has no state of pgapply: nothing to do", target.server.Database)
		removal.strayed(ctx, options)
		return removal, nil
	}
	if err != nil {
		return nil, apply.TargetError(err)
	}
	c := &cleanup{options: options, target: target, store: store, removal: removal}
	if err := c.lock(ctx); err != nil {
		return nil, err
	}
	defer c.unlock()
	if err := c.look(ctx); err != nil {
		return nil, err
	}
	if !options.Confirmed && c.unknown() {
		return nil, c.refuseUnknown(ctx)
	}
	if !options.Confirmed {
		return removal, notConfirmed(options)
	}
	return removal, c.run(ctx)
}

// cleanup is one run of Cleanup. The store's session holds the runner lock, so
// no runner can start meanwhile.
type cleanup struct {
	options CleanupOptions
	target  *targetSession
	store   *state.Store
	removal *Removal

	subscription *state.Subscription // nil when none is recorded
	origins      []state.Origin
	// copied: the state was written on another server or in another database.
	// What it names belongs to the original.
	copied bool
}

func (c *cleanup) lock(ctx context.Context) error {
	holder, err := c.store.TryLock(ctx)
	if err != nil {
		return apply.TargetError(err)
	}
	if holder == nil {
		return nil
	}
	who := holder.String()
	if runner, err := c.store.Runner(ctx); err == nil && runner != nil {
		who = fmt.Sprintf("process %d on %s, %s", runner.PID, runner.Host, who)
	}
	return refused("stop the runner first", "subscription %q is running: %s", c.options.Name, who)
}

// unlock spares the next one who comes the moment that the server needs to notice
// the end of our session, which gives the lock back in any case.
func (c *cleanup) unlock() {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	_ = c.store.Unlock(ctx)
}

// look reads what there is and refuses what must not be taken away.
func (c *cleanup) look(ctx context.Context) (err error) {
	if c.subscription, err = c.store.Subscription(ctx); err != nil {
		return apply.TargetError(err)
	}
	if c.origins, err = c.store.Origins(ctx); err != nil {
		return apply.TargetError(err)
	}
	tables, err := c.store.Tables(ctx)
	if err != nil {
		return apply.TargetError(err)
	}
	c.removal.Tables = len(tables)
	if c.removal.Conflicts, err = c.store.CountConflicts(ctx, state.ConflictFilter{}); err != nil {
		return apply.TargetError(err)
	}
	server := c.target.server
	if sub := c.subscription; sub != nil {
		if !c.options.KeepSlot {
			c.removal.Slot, c.removal.SyncSlot = sub.SlotName, sub.SyncSlot
		}
		c.copied = sub.TargetSystemID != server.SystemID || sub.TargetDatabaseOID != server.DatabaseOID
	}
	if c.copied {
		if !c.options.KeepSlot {
			return refused("repeat with --keep-slot to remove the copied state only",
				"the state of subscription %q was written on another server or database: slot %q belongs to the original", c.options.Name, c.removal.Slot)
		}
		c.origins = nil
	}
	for _, origin := range c.origins {
		c.removal.Origins = append(c.removal.Origins, origin.Name)
	}
	// Under the lock: what a runner has prepared since the first look counts too.
	return c.removal.findPrepared(ctx, c.target)
}

// unknown: the state has nothing that a plan could announce.
func (c *cleanup) unknown() bool {
	return c.subscription == nil && len(c.origins) == 0 && c.removal.Tables == 0 && c.removal.Conflicts == 0 &&
		len(c.removal.Prepared) == 0
}

// refuseUnknown is for a name that may be mistyped, with what else goes by it.
func (c *cleanup) refuseUnknown(ctx context.Context) error {
	names, err := c.store.Names(ctx)
	if err != nil {
		return apply.TargetError(err)
	}
	hint := "check --name and --target"
	if len(names) == 0 {
		hint += "; with --yes schema pgapply goes, which holds no subscription"
	}
	c.removal.strayed(ctx, c.options)
	return refused(hint, "database %q on the target knows no subscription %q%s%s", c.target.server.Database, c.options.Name,
		after(", only ", quoted(names)), after("; ", strings.Join(c.removal.Remains, "; ")))
}

// strayed looks on the publisher for a slot of the name that the state does not
// know. It may be anybody's, and stays.
func (r *Removal) strayed(ctx context.Context, options CleanupOptions) {
	if options.Source == "" || options.KeepSlot {
		return
	}
	conn, identity, err := options.openSource(ctx)
	if err != nil {
		r.remains("perhaps a replication slot %q on the publisher, which cannot be asked: %v", options.Name, err)
		return
	}
	defer closeSource(conn)
	slot, err := conn.Slot(ctx, options.Name)
	switch {
	case err != nil:
		r.remains("perhaps a replication slot %q on the publisher, which cannot be asked: %v", options.Name, err)
	case slot != nil && slot.Database == identity.Database:
		r.remains("replication slot %q on the publisher, in database %q, which keeps WAL and which this state does not know; if it is nobody else's: %s",
			slot.Name, slot.Database, dropByHand(slot.Name))
	}
}

func notConfirmed(options CleanupOptions) error {
	return refused("repeat with --yes", "cleanup of subscription %q is not confirmed", options.Name)
}

func dropByHand(slot string) string {
	return fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", strings.ReplaceAll(slot, "'", "''"))
}

func (c *cleanup) run(ctx context.Context) error {
	if err := c.dropSlots(ctx); err != nil {
		return err
	}
	if err := c.removal.endPrepared(ctx, c.target); err != nil {
		return err
	}
	for _, origin := range c.origins {
		if err := c.dropOrigin(ctx, origin); err != nil {
			return err
		}
	}
	if err := c.store.Forget(ctx); err != nil {
		return apply.TargetError(err)
	}
	if c.unknown() {
		c.removal.did("the target has no state of subscription %q", c.options.Name)
		c.removal.strayed(ctx, c.options)
	} else {
		c.removal.did("deleted the state of subscription %q", c.options.Name)
	}
	if err := c.leftIndexes(ctx); err != nil {
		return err
	}
	kept, err := c.store.DropSchema(ctx)
	switch {
	case err != nil:
		return apply.TargetError(err)
	case kept == "":
		c.removal.did("dropped schema pgapply")
	default:
		c.removal.did("kept schema pgapply: %s", kept)
	}
	return nil
}

// leftIndexes names the indexes that a copy has dropped and nobody has made again, with
// what makes them. Their definitions stay where they are: it is not for a cleanup to
// take hours over them.
func (c *cleanup) leftIndexes(ctx context.Context) error {
	left, err := c.store.DeferredIndexes(ctx)
	if err != nil {
		return apply.TargetError(err)
	}
	for _, index := range left {
		c.removal.remains("the definition of index %q of table %q, which a copy has dropped, in pgapply.deferred_index; another run of subscription %q makes it, or you do: BEGIN; %s; COMMIT",
			strings.ToValidUTF8(index.Name, "?"), strings.ToValidUTF8(index.Table.Schema+"."+index.Table.Name, "?"), c.options.Name,
			strings.ToValidUTF8(strings.ReplaceAll(index.Definition, ";\n", "; "), "?"))
	}
	return nil
}

// dropSlots drops the recorded slots, after proof that they are the ones.
func (c *cleanup) dropSlots(ctx context.Context) error {
	sub := c.subscription
	if sub == nil {
		return nil
	}
	slots := []string{sub.SlotName}
	if sub.SyncSlot != "" {
		slots = append(slots, sub.SyncSlot)
	}
	if c.options.KeepSlot {
		for _, slot := range slots {
			c.removal.remains("replication slot %q on the publisher, which keeps WAL until it is dropped: %s", slot, dropByHand(slot))
		}
		return nil
	}
	var byHand []string
	for _, slot := range slots {
		byHand = append(byHand, dropByHand(slot))
	}
	goOn := fmt.Sprintf("repeat with --keep-slot to clean the target only; the slot then stays and keeps WAL until somebody runs, "+
		"in database %q of the publisher: %s", sub.Source.Database, strings.Join(byHand, "; "))
	if c.options.Source == "" {
		return &apply.Error{
			Class: apply.Configuration, Hint: "set --source, or " + goOn,
			Err: fmt.Errorf("no publisher given, and slot %s is to be dropped there", quoted(slots)),
		}
	}
	conn, identity, err := c.options.openSource(ctx)
	if err != nil {
		typed := apply.SourceError(err)
		typed.Err = fmt.Errorf("nothing was removed: slot %s, %s and the state remain: %w",
			quoted(slots), counted(int64(len(c.origins)), "replication origin"), err)
		typed.Hint = goOn
		return typed
	}
	defer closeSource(conn)
	if identity.SystemID != sub.Source.SystemID || identity.Database != sub.Source.Database {
		return refused("give the publisher's --source, or "+goOn,
			"--source is database %q of system %s, and slot %s was recorded in database %q of system %s",
			identity.Database, identity.SystemID, quoted(slots), sub.Source.Database, sub.Source.SystemID)
	}
	found := make([]*source.Slot, len(slots))
	for i, slot := range slots {
		if found[i], err = c.droppable(ctx, conn, slot, goOn); err != nil {
			return err
		}
	}
	for i, slot := range slots {
		if err := c.dropSlot(ctx, conn, slot, found[i]); err != nil {
			return err
		}
	}
	return nil
}

// droppable looks at a recorded slot, and refuses to drop what is not it, or is in use.
func (c *cleanup) droppable(ctx context.Context, conn *source.Conn, name, goOn string) (*source.Slot, error) {
	slot, err := conn.Slot(ctx, name)
	switch {
	case err != nil:
		return nil, apply.SourceError(err)
	case slot == nil:
		return nil, nil //nolint:nilnil // nothing to drop
	case slot.Type != "logical" || slot.Plugin != "pgoutput" || slot.Database != c.subscription.Source.Database:
		return nil, refused(goOn, "slot %q on the publisher is not the recorded one: it is %s, plugin %q, database %q",
			slot.Name, slot.Type, slot.Plugin, slot.Database)
	case slot.Active:
		who := fmt.Sprintf("process %d", slot.ActivePID)
		if holder, err := conn.SlotHolder(ctx, slot.Name); err == nil && holder != nil {
			who = holder.String()
		}
		busy := refused("stop what uses it; a runner that was killed lets go of it within the publisher's wal_sender_timeout, "+
			"or, where the slot was being made, when the transactions have ended that it waits for",
			"slot %q on the publisher is in use by %s", slot.Name, who)
		busy.Retryable = true
		return nil, busy
	}
	return slot, nil
}

func (c *cleanup) dropSlot(ctx context.Context, conn *source.Conn, name string, slot *source.Slot) error {
	if slot == nil {
		c.removal.did("replication slot %q is not on the publisher any more", name)
		return nil
	}
	err := conn.DropSlot(ctx, name)
	if _, missing := errors.AsType[*source.SlotMissingError](err); err != nil && !missing {
		return apply.SourceError(err)
	}
	c.removal.did("dropped replication slot %q on the publisher", name)
	return nil
}

// dropOrigin drops an origin that the state names, unless somebody has made
// another one of that name since.
func (c *cleanup) dropOrigin(ctx context.Context, origin state.Origin) error {
	tag, err := c.target.conn.Exec(ctx, `
		SELECT pg_catalog.pg_replication_origin_drop(roname) FROM pg_catalog.pg_replication_origin
		WHERE roname = $1 AND ($2::int8 = 0 OR roident::int8 = $2::int8)`, origin.Name, int64(origin.ID))
	if err != nil {
		return originError(fmt.Errorf("drop replication origin %q: %w", origin.Name, err))
	}
	if err := c.store.ForgetOrigin(ctx, origin.Name); err != nil {
		return apply.TargetError(err)
	}
	if tag.RowsAffected() == 0 {
		c.removal.did("replication origin %q is not on the target any more", origin.Name)
		return nil
	}
	c.removal.did("dropped replication origin %q", origin.Name)
	return nil
}

func originError(err error) error {
	const insufficientPrivilege, objectInUse = "42501", "55006"
	typed := apply.TargetError(err)
	if server, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch server.Code {
		case insufficientPrivilege:
			typed.Hint = "as an administrator: GRANT EXECUTE ON FUNCTION pg_catalog.pg_replication_origin_drop(text) TO the role of --target"
		case objectInUse:
			typed.Class, typed.Retryable = apply.Refused, true
			typed.Hint = "end the session on the target that uses it, then run the cleanup again"
		}
	}
	return typed
}
