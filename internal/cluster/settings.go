package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// defaultSettings make a server small, quick and able to publish. They give up
// durability, see Options.Durable.
func defaultSettings(major int) map[string]string {
	settings := map[string]string{
		"fsync":                     "off",
		"huge_pages":                "off",
		"log_line_prefix":           "%m [%p] %q%a@%d ",
		"max_connections":           "60",
		"max_prepared_transactions": "20",
		"max_replication_slots":     "40",
		"max_wal_senders":           "20",
		"shared_buffers":            "32MB",
		"wal_level":                 "logical",
	}
	// Before 18 the origins in use counted against max_replication_slots.
	if major >= 18 {
		settings["max_active_replication_origins"] = "40"
	}
	return settings
}

// formatSettings writes them as lines of postgresql.conf.
func formatSettings(settings map[string]string) string {
	quote := strings.NewReplacer(`\`, `\\`, `'`, `''`, "\n", `\n`)
	var text strings.Builder
	text.WriteString("\n")
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = '%s'\n", name, quote.Replace(settings[name]))
	}
	return text.String()
}
