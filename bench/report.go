package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// report is a whole run, as it is saved.
type report struct {
	Server   string    `json:"server"`
	Commit   string    `json:"commit"`
	Go       string    `json:"go"`
	CPUs     int       `json:"cpus"`
	Rounds   int       `json:"rounds"`
	Load     string    `json:"load"`     // averages of 1, 5 and 15 minutes at the start
	Scale    float64   `json:"scale"`    // of copies
	Settings string    `json:"settings"` // that differ from the usual ones
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	Results  []*result `json:"results"`
}

func newReport(ctx context.Context, o options, s *servers) (*report, error) {
	version, err := value(ctx, s.target.URI("postgres"), `SELECT version()`)
	if err != nil {
		return nil, err
	}
	server, _, _ := strings.Cut(version, ",") // not the compiler
	r := &report{
		Server: server, Commit: commit(ctx), Go: runtime.Version(), CPUs: runtime.NumCPU(),
		Rounds: o.rounds, Load: load(), Scale: o.scale, Started: time.Now().UTC(),
	}
	var settings []string
	if o.cold {
		settings = append(settings, "cold target")
	}
	if o.track {
		settings = append(settings, "commit timestamps tracked")
	}
	if o.scale != 1 {
		settings = append(settings, fmt.Sprintf("copies scaled by %v", o.scale))
	}
	r.Settings = strings.Join(settings, ", ")
	return r, nil
}

// commit names what was measured.
func commit(ctx context.Context) string {
	text, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}

// load is what the machine had to do when it was asked, or empty where it does not say
// (proc_loadavg(5)).
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 3 {
		return ""
	}
	return strings.Join(fields[:3], " ")
}

// markdown is the report for people.
func (r *report) markdown() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, fsync off, %d CPUs, %s, commit %s, %d rounds, %s", r.Server, r.CPUs, r.Go, r.Commit, r.Rounds, r.Started.Format(time.DateOnly))
	if r.Load != "" {
		text.WriteString(", load at the start " + r.Load)
	}
	if r.Settings != "" {
		text.WriteString(", " + r.Settings)
	}
	text.WriteString("\n")
	for _, w := range workloads(r.Scale) {
		var measured []*result
		for _, result := range r.Results {
			if result.Workload == w.name && len(result.Measures) > 0 {
				measured = append(measured, result)
			}
		}
		if len(measured) > 0 {
			fmt.Fprintf(&text, "\n%s: %s\n\n%s", w.name, w.title, w.table(measured))
		}
	}
	return text.String()
}

// save writes the report to two new files.
func (r *report) save(directory string) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	name := filepath.Join(directory, r.Started.Format("2006-01-02T150405Z"))
	fmt.Printf("\nsaved as %s.json and .md\n", name)
	return errors.Join(os.WriteFile(name+".json", append(data, '\n'), 0o644), os.WriteFile(name+".md", []byte(r.markdown()), 0o644))
}
