package operate

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// size writes a number of bytes with a binary unit: 512 B, 1.5 KiB.
func size(bytes int64) string {
	if bytes < 1024 {
		return fmt.Sprintf("%d B", bytes)
	}
	value, unit := float64(bytes), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"} {
		value /= 1024
		// What would be rounded up to 1024.0 is 1.0 of the next unit.
		if value < 1023.95 {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}

// duration writes a time span with its two largest units: 4.2s, 3m12s, 5d3h.
func duration(d time.Duration) string {
	if d < 9950*time.Millisecond { // what would be rounded to 10.0s is 10s
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	d = d.Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// moment writes a time to the second, in UTC.
func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// seconds is duration for a number of seconds.
func seconds(n float64) string { return duration(time.Duration(n * float64(time.Second))) }

// count writes a number with commas between thousands.
func count(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	var text strings.Builder
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			text.WriteByte(',')
		}
		text.WriteRune(digit)
	}
	return sign + text.String()
}

// counted is count with its noun: 1 row, 2 rows.
func counted(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return count(n) + " " + noun
}

// quoted lists names as PostgreSQL's messages do: "a", "b".
func quoted(names []string) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = strconv.Quote(name)
	}
	return strings.Join(list, ", ")
}

// version writes a server_version_num as PostgreSQL does: 180004 is 18.4.
func version(number int) string {
	return fmt.Sprintf("%d.%d", number/10000, number%10000)
}
