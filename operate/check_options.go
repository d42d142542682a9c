package operate

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"pgapply/apply"
	"pgapply/internal/source"
	"pgapply/internal/spool"
)

// checkSpool looks at the directory that takes what does not fit into memory, which
// a runner opens only then.
func checkSpool(f *facts) []Finding {
	const subject = "spool"
	const remedy = "name a directory that the runner's user can write to with --spool-dir"
	directory := cmp.Or(f.options.SpoolDir, os.TempDir())
	found, err := nearest(directory)
	if err != nil {
		return failure(subject, remedy, "--spool-dir cannot be used: %v", err)
	}
	// Made and removed again: rights alone do not tell, as on a file system that is
	// read-only.
	trial, err := os.MkdirTemp(found, "pgapply-check-")
	if err == nil {
		err = os.Remove(trial)
	}
	if err != nil {
		return failure(subject, remedy, "--spool-dir %s cannot be used: %v", directory, err)
	}
	free, known := spool.Free(found)
	findings := spoolRoom(&f.options, directory, free, known)
	if found != filepath.Clean(directory) {
		findings = append(findings, warning(subject, "make it, or correct --spool-dir", "%s does not exist yet: the runner creates it in %s", directory, found)...)
	}
	if len(findings) > 0 {
		return findings
	}
	return ok(subject, "up to %s in %s", size(f.options.SpoolLimit), directory)
}

// spoolRoom warns where large transactions may not fit. free is what the directory's
// file system has left, where that is known.
func spoolRoom(options *apply.Options, directory string, free int64, known bool) []Finding {
	const subject = "spool"
	var findings []Finding
	if options.SpoolLimit < options.MemoryLimit {
		findings = append(findings, warning(subject, "raise --spool-limit above the size of the largest transaction",
			"--spool-limit %s is less than --memory-limit %s: a transaction that does not fit in there by itself is never applied",
			size(options.SpoolLimit), size(options.MemoryLimit))...)
	}
	if known && free < options.SpoolLimit {
		findings = append(findings, warning(subject, "free some there, name another directory with --spool-dir, or lower --spool-limit",
			"%s has %s free, less than --spool-limit %s", directory, size(free), size(options.SpoolLimit))...)
	}
	return findings
}

// nearest is the directory, or the first one above it that exists.
func nearest(directory string) (string, error) {
	for directory = filepath.Clean(directory); ; directory = filepath.Dir(directory) {
		info, err := os.Stat(directory)
		switch {
		case errors.Is(err, fs.ErrNotExist) && directory != filepath.Dir(directory):
		case err != nil:
			return "", err
		case !info.IsDir():
			return "", &fs.PathError{Op: "use", Path: directory, Err: syscall.ENOTDIR}
		default:
			return directory, nil
		}
	}
}

// checkPolicies finds policies for tables of which nothing arrives.
func checkPolicies(f *facts) []Finding {
	if len(f.publisher.missing) > 0 {
		return nil // which has more tables, perhaps
	}
	var findings []Finding
	for _, policy := range f.options.OnConflict.Strings() {
		place, _, _ := strings.Cut(policy, "=")
		colon := strings.LastIndex(place, ":")
		if colon < 0 {
			continue
		}
		table := place[:colon]
		published := slices.ContainsFunc(f.publisher.published, func(p source.Published) bool { return p.Schema+"."+p.Name == table })
		if !published {
			findings = append(findings, warning("policies", "correct the name in --on-conflict, or add the table to the publication",
				"--on-conflict %s is for a table that is not published", policy)...)
		}
	}
	return findings
}
