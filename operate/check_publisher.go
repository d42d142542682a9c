package operate

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/source"
	"pgapply/origin"
)

// publisherFacts are what the publisher says about itself.
type publisherFacts struct {
	identity source.Identity
	version  int
	role     string
	encoding string
	// converts: the publisher can send text in the target's encoding.
	converts bool

	ready source.Readiness
	// logicalErr is why it cannot decode.
	logicalErr error
	slotsInUse int
	room       *publisherRoom
	// prepared is how many prepared transactions the database has.
	prepared int
	waits    waits
	// standby is nil where it is none, failover where that is not asked for or not possible.
	standby  *standbyFacts
	failover *failoverFacts

	keeping keeping
	clock   clock
	beyond  beyond
	// columns are those of the published tables, also what of them is not published.
	columns map[column]columnFacts

	missing   []string // publications
	published []source.Published
	rights    []publishedRights
	slot      *source.Slot
}

func gatherPublisher(ctx context.Context, conn *source.Conn, identity source.Identity, f *facts) (*publisherFacts, error) {
	p := &publisherFacts{identity: identity, version: conn.Version(), converts: true}
	rows, err := conn.Query(ctx, `
		SELECT current_user, pg_catalog.pg_encoding_to_char(encoding),
			(SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots),
			(SELECT pg_catalog.count(*) FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database())
		FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()`)
	if err != nil {
		return nil, fmt.Errorf("look at the publisher: %w", err)
	}
	p.role, p.encoding = string(rows[0][0]), string(rows[0][1])
	if p.slotsInUse, err = strconv.Atoi(string(rows[0][2])); err != nil {
		return nil, fmt.Errorf("count the slots of the publisher: %w", err)
	}
	if p.prepared, err = strconv.Atoi(string(rows[0][3])); err != nil {
		return nil, fmt.Errorf("count the prepared transactions of the publisher: %w", err)
	}
	if p.ready, err = conn.Readiness(ctx); err != nil {
		return nil, err
	}
	if p.logicalErr = conn.CheckLogical(ctx); p.logicalErr != nil && source.ClassOf(p.logicalErr) != source.Configuration {
		return nil, p.logicalErr
	}
	if p.missing, err = conn.MissingPublications(ctx, f.options.Publications); err != nil {
		return nil, err
	}
	if p.published, err = conn.Published(ctx, f.options.Publications); err != nil {
		return nil, err
	}
	p.published = slices.DeleteFunc(p.published, func(t source.Published) bool { return !f.options.Tables.Has(t.Schema, t.Name) })
	if p.rights, err = gatherPublishedRights(ctx, conn, p.published); err != nil {
		return nil, err
	}
	if p.slot, err = conn.Slot(ctx, f.options.SlotName()); err != nil {
		return nil, err
	}
	if err := p.gatherRole(ctx, conn, &f.options); err != nil {
		return nil, err
	}
	if p.room, err = gatherPublisherRoom(ctx, conn); err != nil {
		return nil, err
	}
	if p.keeping, err = gatherKeeping(ctx, conn); err != nil {
		return nil, err
	}
	if err := p.gatherBeyond(ctx, conn); err != nil {
		return nil, err
	}
	if err := p.gatherColumns(ctx, conn); err != nil {
		return nil, err
	}
	p.clock, err = askClock(ctx, func(ctx context.Context, sql string) (string, error) {
		rows, err := conn.Query(ctx, sql)
		if err != nil {
			return "", err
		}
		return string(rows[0][0]), nil
	})
	if err != nil {
		return nil, err
	}
	if f.target != nil {
		p.converts, err = canConvert(ctx, conn, p.encoding, f.target.server.Encoding)
	}
	return p, err
}

// gatherRole looks at what depends on whether the publisher is a standby.
func (p *publisherFacts) gatherRole(ctx context.Context, conn *source.Conn, options *apply.Options) (err error) {
	if !p.identity.InRecovery {
		if options.Failover && p.version >= 17_00_00 {
			if p.failover, err = gatherFailover(ctx, conn); err != nil {
				return err
			}
		}
		p.waits, err = gatherWaits(ctx, "publisher", conn)
		return err
	}
	if p.standby, err = gatherStandby(ctx, conn); err != nil || options.Primary == "" {
		return err
	}
	return p.gatherPrimary(ctx, options)
}

// canConvert asks for the conversion that a session with the target's encoding as
// its client_encoding uses. Names of encodings hold no quotes.
func canConvert(ctx context.Context, conn *source.Conn, from, to string) (bool, error) {
	if from == to || from == ascii || to == ascii {
		return true, nil
	}
	rows, err := conn.Query(ctx, fmt.Sprintf(`SELECT FROM pg_catalog.pg_conversion WHERE condefault
		AND conforencoding = pg_catalog.pg_char_to_encoding('%s') AND contoencoding = pg_catalog.pg_char_to_encoding('%s')`, from, to))
	if err != nil {
		return false, fmt.Errorf("look for a conversion from %s to %s: %w", from, to, err)
	}
	return len(rows) > 0, nil
}

// ascii is the encoding that says nothing about bytes above 127.
const ascii = "SQL_ASCII"

func checkLogical(f *facts) []Finding {
	p := f.publisher
	if p.logicalErr != nil {
		return failed("publisher", p.logicalErr)
	}
	standby := ""
	if p.standby != nil {
		standby = ", a standby"
	}
	return ok("publisher", "PostgreSQL %s%s, database %s, role %s, wal_level %s", version(p.version), standby, p.identity.Database, p.role, p.ready.WALLevel)
}

func checkPair(f *facts) []Finding {
	if err := f.ends().CheckPair(); err != nil {
		return failed("ends", err)
	}
	return nil
}

func checkPublications(f *facts) []Finding {
	p := f.publisher
	switch names := strings.Join(f.options.Publications, ", "); {
	case len(p.missing) > 0:
		return failure("publications", "create it on the publisher, in the database of --source: CREATE PUBLICATION ... FOR TABLE ...",
			"the publisher's database %q has no publication %s", p.identity.Database, quoted(p.missing))
	case len(p.published) == 0:
		return warning("publications", "add tables: ALTER PUBLICATION ... ADD TABLE ...", "no table is published by %s", names)
	default:
		return ok("publications", "%s published by %s", counted(int64(len(p.published)), "table"), names)
	}
}

func checkEncodings(f *facts) []Finding {
	const subject = "encodings"
	from, to := f.publisher.encoding, f.target.server.Encoding
	switch {
	case !f.publisher.converts:
		return failure(subject, "use a target database in encoding "+from+" or UTF8", "the publisher's %s cannot be converted to the target's %s", from, to)
	case from == to && from != ascii:
		return ok(subject, "%s on both ends", from)
	case from == ascii && to == ascii:
		return ok(subject, "%s on both ends: bytes go through as they are", ascii)
	case from == ascii:
		return warning(subject, "see that the publisher holds nothing but "+to,
			"the publisher's %s says nothing about its bytes: what is no valid %s stops the subscription", from, to)
	case to == ascii:
		return warning(subject, "use a target database in encoding "+from, "the target's %s keeps the bytes of the publisher's %s and does not know what they mean", to, from)
	case to == "UTF8":
		return ok(subject, "the publisher's %s is converted to %s", from, to)
	}
	return warning(subject, "use a target database in encoding "+from+" or UTF8",
		"the publisher's %s is converted to %s: a character that this does not have stops the subscription", from, to)
}

// checkSlot asks what a start asks before it streams.
func checkSlot(f *facts) []Finding {
	t, p, ends := f.target, f.publisher, f.ends()
	if t.stateErr != nil {
		return nil // said before; what it would hold is not known
	}
	sub := t.subscription
	if sub == nil || sub.SlotState == state.SlotCreating {
		ours := sub != nil && sub.SlotName == f.options.SlotName()
		if err := ends.MayBegin(p.slot, ours); err != nil {
			return failed("slot", err)
		}
		if p.slot == nil || ours {
			return ok("slot", "%s will be created", f.options.SlotName())
		}
		return ok("slot", "%s will be adopted at %s", p.slot.Name, p.slot.ConfirmedFlush)
	}
	if err := ends.MayResume(sub, p.slot); err != nil {
		return failed("slot", err)
	}
	if !t.ownOrigin && sub.ProgressIn == state.InOrigins && t.terms != nil && t.terms.Progress == state.InOrigins {
		return failed("slot", ends.LostOrigin(origin.Name(f.options.Name, t.server.DatabaseOID, 0)))
	}
	if t.progressErr != nil {
		return failed("slot", apply.TargetError(t.progressErr))
	}
	known, err := ends.Known(sub, p.slot, t.progress, t.progress)
	if err != nil && t.holder != nil {
		return ok("slot", "%s is confirmed up to %s, and a runner moves it on", p.slot.Name, p.slot.ConfirmedFlush)
	}
	if err != nil {
		return failed("slot", err)
	}
	if p.slot.WALStatus == "unreserved" {
		return warning("slot", "let a runner catch up, or raise max_slot_wal_keep_size", "%s is about to be lost: the publisher keeps no more WAL for it", p.slot.Name)
	}
	if safe := p.slot.SafeWALSize; safe != nil && *safe < p.keeping.mostWAL/4 {
		return warning("slot", "let a runner catch up, or raise max_slot_wal_keep_size", "%s may keep %s more of WAL, of %s, and is lost then",
			p.slot.Name, size(max(0, *safe)), size(p.keeping.mostWAL))
	}
	return ok("slot", "%s is confirmed up to %s, and the target is at %s", p.slot.Name, p.slot.ConfirmedFlush, known)
}

// checkPublisherRoom looks for a place for the slot, where it is to be created. That
// there is one for the walsender is proven by this check's own.
func checkPublisherRoom(f *facts) []Finding {
	p := f.publisher
	if p.slot == nil && p.slotsInUse >= p.ready.MaxSlots {
		return failure("publisher", "raise max_replication_slots and restart the publisher, or drop a slot that is not needed",
			"max_replication_slots is %d, and all are taken", p.ready.MaxSlots)
	}
	return nil
}
