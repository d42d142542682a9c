package operate

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"pgapply/internal/source"
)

// keeping are settings of the publisher that decide how long a slot lives, and which
// output plugins it may have.
type keeping struct {
	// mostWAL is max_slot_wal_keep_size in bytes, negative for no limit; known from 13 on.
	mostWAL  int64
	hasLimit bool
	// mostIdle is idle_replication_slot_timeout (18 and later); 0 for none.
	mostIdle time.Duration
	// plugins is the list of plugins that may be loaded, where the publisher has one.
	plugins string
}

func gatherKeeping(ctx context.Context, conn *source.Conn) (k keeping, err error) {
	rows, err := conn.Query(ctx, `SELECT name, setting, unit FROM pg_catalog.pg_settings
		WHERE name IN ('max_slot_wal_keep_size', 'idle_replication_slot_timeout', 'output_plugin_libraries')`)
	if err != nil {
		return k, fmt.Errorf("read the publisher's settings of slots: %w", err)
	}
	for _, row := range rows {
		name, setting, unit := string(row[0]), string(row[1]), string(row[2])
		if name == "output_plugin_libraries" {
			k.plugins = setting
			continue
		}
		number, err := strconv.ParseInt(setting, 10, 64)
		if err != nil {
			return k, fmt.Errorf("read %s of the publisher: %w", name, err)
		}
		switch {
		case name == "max_slot_wal_keep_size": // in MB
			k.hasLimit, k.mostWAL = true, number<<20
		case unit == "min":
			k.mostIdle = time.Duration(number) * time.Minute
		case unit == "s":
			k.mostIdle = time.Duration(number) * time.Second
		}
	}
	return k, nil
}

// checkPlugins asks whether the publisher may load pgoutput.
func checkPlugins(f *facts) []Finding {
	const plugin = "pgoutput"
	list := f.publisher.keeping.plugins
	allowed := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '"' })
	if list == "" || slices.Contains(allowed, plugin) || slices.Contains(allowed, "*") {
		return nil
	}
	return failure("publisher", "add "+plugin+" to output_plugin_libraries on the publisher", "output_plugin_libraries is %q: the publisher may not load %s", list, plugin)
}

// checkKeeping says how long a runner may be away.
func checkKeeping(f *facts) []Finding {
	const subject = "retention"
	k := &f.publisher.keeping
	var findings []Finding
	if k.mostIdle > 0 {
		findings = warning(subject, "set idle_replication_slot_timeout = 0 on the publisher, or never let a runner be away for that long",
			"idle_replication_slot_timeout is %s: a slot that nobody uses for so long is lost", duration(k.mostIdle))
	}
	switch {
	case !k.hasLimit || k.mostWAL < 0:
		return append(findings, ok(subject, "while no runner streams the publisher keeps all WAL, without a limit: watch its disk")...)
	case k.mostWAL < 1<<30:
		return append(findings, warning(subject, "raise max_slot_wal_keep_size on the publisher to what its disk has room for",
			"max_slot_wal_keep_size is %s: a runner that is away, or a copy that lasts, for that much WAL loses the slot", size(k.mostWAL))...)
	}
	return append(findings, ok(subject, "max_slot_wal_keep_size is %s: a runner that is away for that much WAL loses the slot", size(k.mostWAL))...)
}
