package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"pgapply/internal/source"
)

// failoverFacts are what the publisher knows of standbys that are to keep its slots.
type failoverFacts struct {
	// waitsFor are the physical slots of synchronized_standby_slots: what their standbys
	// do not have yet is not sent.
	waitsFor []string
	// physical are the slots that there are.
	physical []physicalSlot
	// synchronizing: a standby fetches slots now.
	synchronizing bool
}

type physicalSlot struct {
	name             string
	active, feedback bool
}

func gatherFailover(ctx context.Context, conn *source.Conn) (*failoverFacts, error) {
	// A standby that synchronizes has an ordinary session here, which has this name, or
	// that of its walsender where primary_conninfo gives one (slotsync.c, ReplSlotSyncWorkerMain).
	rows, err := conn.Query(ctx, `SELECT pg_catalog.current_setting('synchronized_standby_slots'), EXISTS (
		SELECT FROM pg_catalog.pg_stat_activity a
		WHERE a.pid NOT IN (SELECT pid FROM pg_catalog.pg_stat_replication) AND (a.application_name LIKE '%slotsync worker' OR a.application_name IN (
			SELECT nullif(r.application_name, '') FROM pg_catalog.pg_stat_replication r
			JOIN pg_catalog.pg_replication_slots s ON s.active_pid = r.pid AND s.slot_type = 'physical')))`)
	if err != nil {
		return nil, fmt.Errorf("look for standbys that keep slots: %w", err)
	}
	f := &failoverFacts{synchronizing: string(rows[0][1]) == "t"}
	for _, name := range strings.Split(string(rows[0][0]), ",") {
		if name = strings.Trim(name, ` "`); name != "" {
			f.waitsFor = append(f.waitsFor, name)
		}
	}
	// With hot_standby_feedback a standby's slot has an xmin.
	if rows, err = conn.Query(ctx, `SELECT slot_name, active, xmin IS NOT NULL FROM pg_catalog.pg_replication_slots WHERE slot_type = 'physical'`); err != nil {
		return nil, fmt.Errorf("look for standbys that keep slots: %w", err)
	}
	for _, row := range rows {
		f.physical = append(f.physical, physicalSlot{string(row[0]), string(row[1]) == "t", string(row[2]) == "t"})
	}
	return f, nil
}

// checkFailover looks for what keeps a standby from going on with the slot when it is
// promoted. Of the settings on the standbys only the effects can be seen from here.
func checkFailover(f *facts) []Finding {
	const subject = "failover"
	p := f.publisher
	if p.failover == nil {
		return nil
	}
	var findings []Finding
	warn := func(remedy, format string, arguments ...any) {
		findings = append(findings, warning(subject, remedy, format, arguments...)...)
	}
	if len(p.failover.waitsFor) == 0 {
		warn("set it to the slots (primary_slot_name) of the standbys that may be promoted",
			"synchronized_standby_slots is empty on the publisher: the target may be ahead of a standby that is promoted, which then lacks what the target has")
	}
	for _, name := range p.failover.waitsFor {
		at := slices.IndexFunc(p.failover.physical, func(s physicalSlot) bool { return s.name == name })
		switch {
		case at < 0:
			warn("create the slot, or take it out of synchronized_standby_slots", "synchronized_standby_slots names %q, and the publisher has no such physical slot: nothing is sent to the target", name)
		case !p.failover.physical[at].active:
			warn("start its standby, or take it out of synchronized_standby_slots", "no standby uses slot %q of synchronized_standby_slots: nothing is sent to the target meanwhile", name)
		case !p.failover.physical[at].feedback:
			warn("set hot_standby_feedback = on there", "the standby of slot %q gives no hot_standby_feedback, without which it keeps no slots", name)
		}
	}
	if !p.failover.synchronizing {
		warn("on a standby, set sync_replication_slots = on, hot_standby_feedback = on, primary_slot_name, and a dbname in primary_conninfo",
			"no standby of the publisher synchronizes slots now: none could go on with this one")
	}
	if len(findings) == 0 {
		return ok(subject, "a standby synchronizes slots, and the target does not get ahead of %s", strings.Join(p.failover.waitsFor, ", "))
	}
	return findings
}
