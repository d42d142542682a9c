package source

import (
	"context"
	"fmt"
	"strconv"
)

// Readiness is what decides whether the publisher can decode its log for us.
type Readiness struct {
	// WALLevel is minimal, replica or logical.
	WALLevel string
	// InRecovery is true on a standby.
	InRecovery bool
	// MaxSlots and MaxSenders are the publisher's limits.
	MaxSlots, MaxSenders int
}

// Readiness reads the settings that decide over logical decoding.
func (c *Conn) Readiness(ctx context.Context) (Readiness, error) {
	rows, err := c.Query(ctx, `SELECT pg_catalog.current_setting('wal_level'), pg_catalog.pg_is_in_recovery(),
		pg_catalog.max(setting) FILTER (WHERE name = 'max_replication_slots'),
		pg_catalog.max(setting) FILTER (WHERE name = 'max_wal_senders') FROM pg_catalog.pg_settings`)
	if err != nil {
		return Readiness{}, fmt.Errorf("read the publisher's settings: %w", err)
	}
	ready := Readiness{WALLevel: text(rows, 0, 0), InRecovery: text(rows, 0, 1) == "t"}
	var numbers [2]int
	for i := range numbers {
		if numbers[i], err = strconv.Atoi(text(rows, 0, 2+i)); err != nil {
			return Readiness{}, fmt.Errorf("read the publisher's settings: %w", err)
		}
	}
	ready.MaxSlots, ready.MaxSenders = numbers[0], numbers[1]
	return ready, nil
}

// CheckLogical returns a ConfigurationError when the publisher cannot decode
// its log, with the remedy.
func (c *Conn) CheckLogical(ctx context.Context) error {
	ready, err := c.Readiness(ctx)
	if err != nil {
		return err
	}
	switch {
	case ready.WALLevel == "minimal", ready.WALLevel != "logical" && c.major() < 19:
		// From 19 on, "replica" turns logical decoding on with the first logical slot.
		return &ConfigurationError{Reason: fmt.Sprintf("wal_level on the publisher is %s: set it to logical and restart the publisher", ready.WALLevel)}
	case ready.InRecovery && c.major() < 16:
		return &ConfigurationError{Reason: fmt.Sprintf("the publisher is a standby of major %d, which cannot decode: connect to its primary", c.major())}
	case ready.MaxSlots == 0 || ready.MaxSenders == 0:
		return &ConfigurationError{Reason: fmt.Sprintf("max_replication_slots is %d and max_wal_senders is %d on the publisher: raise both above zero and restart the publisher",
			ready.MaxSlots, ready.MaxSenders)}
	}
	return nil
}
