package operate

import (
	"context"
	"fmt"

	"pgapply/apply"
	"pgapply/internal/source"
)

// standbyFacts are what a publisher that is a standby says about itself.
type standbyFacts struct {
	// feedback keeps the primary from removing what the standby's slots need, while they
	// are connected; primarySlot keeps it also when they are not.
	feedback    bool
	primarySlot string
	paused      bool
	// primaryErr is why the server of --primary is of no use.
	primaryErr error
}

func gatherStandby(ctx context.Context, conn *source.Conn) (*standbyFacts, error) {
	rows, err := conn.Query(ctx, `SELECT pg_catalog.current_setting('hot_standby_feedback'), pg_catalog.current_setting('primary_slot_name'),
		pg_catalog.pg_is_wal_replay_paused()`)
	if err != nil {
		return nil, fmt.Errorf("look at the standby: %w", err)
	}
	return &standbyFacts{
		feedback: string(rows[0][0]) == "on", primarySlot: string(rows[0][1]), paused: string(rows[0][2]) == "t",
	}, nil
}

// gatherPrimary asks the primary what the standby cannot know.
func (p *publisherFacts) gatherPrimary(ctx context.Context, options *apply.Options) error {
	var primary *source.Conn
	if primary, p.standby.primaryErr = apply.OpenPrimary(ctx, options, p.identity, nil); p.standby.primaryErr != nil {
		return nil
	}
	defer closeSource(primary)
	var err error
	p.waits, err = gatherWaits(ctx, "primary", primary)
	return err
}

// checkStandby looks for what costs a standby its slots, and at its primary.
func checkStandby(f *facts) []Finding {
	const subject = "standby"
	s := f.publisher.standby
	if s == nil {
		if f.options.Primary != "" {
			return ok("primary", "not needed: the publisher is not a standby")
		}
		return nil
	}
	var findings []Finding
	if !s.feedback || s.primarySlot == "" {
		findings = append(findings, warning(subject, "on the standby, set hot_standby_feedback = on and primary_slot_name to a slot of the primary",
			"hot_standby_feedback is %s and primary_slot_name is %q on the publisher, a standby: its slot is lost when the primary removes catalog rows that it needs",
			onOff(s.feedback), s.primarySlot)...)
	}
	if s.paused {
		findings = append(findings, warning(subject, "SELECT pg_wal_replay_resume() on it", "replay is paused on the publisher, a standby: nothing new comes from it")...)
	}
	switch {
	case f.options.Primary == "":
	case s.primaryErr != nil:
		findings = append(findings, failed("primary", s.primaryErr)...)
	default:
		findings = append(findings, ok("primary", "it is the publisher's, and may be told to record its running transactions")...)
	}
	return findings
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
