package config

import (
	"encoding/csv"
	"errors"
	"strings"
)

// Setting is one that a command takes.
type Setting struct {
	// Name in lower case, with dashes between words.
	Name string
	// List settings have any number of values, each of which Set adds. Pairs are lists of
	// KEY=VALUE and GROUP:KEY=VALUE, which the file may write as a mapping.
	List, Pairs bool
	// Given: the command line has set it, and wins.
	Given bool
	// Set reads a value. Its error quotes what is wrong, and does not name the setting.
	Set func(text string) error
}

// Value is one value of a setting, and where it was written.
type Value struct {
	Text, Where string
}

// Source is a place other than the command line where settings may be.
type Source interface {
	// Kind is what origins call it.
	Kind() Kind
	// Lookup returns the values of a setting, none for an empty list, and whether it is
	// there. The error says where the setting does not have the form that it should.
	Lookup(setting *Setting) (values []Value, found bool, err error)
}

// Kind is where a value came from.
type Kind string

// The kinds of origins.
const (
	Default     Kind = "default"
	Flag        Kind = "flag"
	Environment Kind = "environment"
	InFile      Kind = "file"
)

// Origin is where the value of a setting came from.
type Origin struct {
	Kind Kind
	// Where is the variable, or file and line; empty for the other kinds.
	Where string
}

// Resolve sets each setting that the command line leaves open from the first source that
// has it, and says where each came from. It goes on after a fault, and returns all.
func Resolve(settings []Setting, sources ...Source) (map[string]Origin, []error) {
	origins := make(map[string]Origin)
	var faults []error
	for i := range settings {
		setting := &settings[i]
		origin := Origin{Kind: Default}
		if setting.Given {
			origin.Kind = Flag
		}
		for _, source := range sources {
			if origin.Kind != Default {
				break
			}
			values, found, err := source.Lookup(setting)
			faults = append(faults, each(err)...)
			if !found {
				continue
			}
			origin.Kind = source.Kind()
			for _, value := range values {
				if origin.Where == "" {
					origin.Where = value.Where
				}
				if err := setting.Set(value.Text); err != nil {
					faults = append(faults, &Fault{Setting: setting.Name, Place: place(value, setting, source), Err: err})
				}
			}
		}
		origins[setting.Name] = origin
	}
	return origins, faults
}

// each takes joined errors apart.
func each(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // what errors.Join has made, itself
		return joined.Unwrap()
	}
	return []error{err}
}

// place names value and setting; a variable names both.
func place(value Value, setting *Setting, source Source) string {
	if source.Kind() == Environment {
		return value.Where
	}
	return value.Where + ": " + setting.Name
}

// Fault is what is wrong with the value of a setting.
type Fault struct {
	Setting string
	// Place is where it was written, with the name of the setting.
	Place string
	Err   error
}

func (f *Fault) Error() string { return f.Place + ": " + f.Err.Error() }

// Unwrap returns the fault without its place.
func (f *Fault) Unwrap() error { return f.Err }

// Variable is the environment variable that stands in for a setting.
func Variable(name string) string {
	return "PGAPPLY_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// Variables are the environment. A variable that is empty counts as not set. Lists are
// separated by commas, with quotes as in CSV around what contains one.
type Variables func(name string) (string, bool)

// Kind implements Source.
func (v Variables) Kind() Kind { return Environment }

// Lookup implements Source.
func (v Variables) Lookup(setting *Setting) ([]Value, bool, error) {
	name := Variable(setting.Name)
	text, _ := v(name)
	switch {
	case text == "":
		return nil, false, nil
	case !setting.List:
		return []Value{{text, name}}, true, nil
	}
	items, err := csv.NewReader(strings.NewReader(text)).Read()
	if err != nil {
		return nil, true, &Fault{setting.Name, name, errors.New("it is not a list separated by commas, with quotes only around a whole item")}
	}
	values := make([]Value, len(items))
	for i, item := range items {
		values[i] = Value{item, name}
	}
	return values, true, nil
}
