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
		Rounds: o.rounds, Started: time.Now().UTC(),
	}
	var settings []string
	if o.cold {
		settings = append(settings, "cold target")
	}
	if o.track {
		settings = append(settings, "commit timestamps tracked")
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

// markdown is the report for people.
func (r *report) markdown() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, fsync off, %d CPUs, %s, commit %s, %d rounds, %s", r.Server, r.CPUs, r.Go, r.Commit, r.Rounds, r.Started.Format(time.DateOnly))
	if r.Settings != "" {
		text.WriteString(", " + r.Settings)
	}
	text.WriteString("\n")
	for _, w := range workloads() {
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
