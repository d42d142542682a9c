package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/internal/config"
)

const configFlag = "config"

// settle gives the flags that the command line leaves open their values from the
// environment and the file. The error is everything that is wrong in any of them.
func (v *verb) settle() error {
	faults := append(v.faults, v.resolve()...)
	if len(faults) == 0 {
		return nil
	}
	if v.validate != nil {
		faults = append(faults, unsaid(v.validate(), faults)...)
	}
	return usageError(v.Command, "%w", errors.Join(faults...))
}

// flagError is a mistake in the flags of a command line, with what else is wrong. What
// stands behind it on the command line was not read.
func (v *verb) flagError(err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		var names []string
		v.Flags().VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
		if near := config.Nearest(unknown.GetSpecifiedName(), names); near != "" {
			err = fmt.Errorf("%w: did you mean --%s?", err, near)
		}
	}
	faults := append(v.faults, err)
	return usageError(v.Command, "%w", errors.Join(append(faults, v.resolve()...)...))
}

// resolve asks environment and file, and returns what is wrong there.
func (v *verb) resolve() []error {
	variables := config.Variables(os.LookupEnv)
	sources := []config.Source{variables}
	path, where := v.file, "--"+configFlag
	if path == "" {
		where = variable(configFlag)
		path, _ = variables(where)
	}
	var faults []error
	if path != "" {
		file, wrong := config.Read(path, fileNames(v.Root()))
		sources = append(sources, file)
		for _, err := range wrong {
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
				err = fmt.Errorf("%s: %w", where, err)
			}
			faults = append(faults, err)
		}
	}
	var wrong []error
	v.origins, wrong = config.Resolve(v.settings(), sources...)
	return append(wrong, faults...)
}

// settings are the flags as internal/config knows them.
func (v *verb) settings() []config.Setting {
	var list []config.Setting
	for _, group := range v.groups {
		group.flags.VisitAll(func(flag *pflag.Flag) {
			_, pairs := flag.Value.(policies)
			list = append(list, config.Setting{
				Name: flag.Name, List: flag.Value.Type() == listType, Pairs: pairs, Given: v.Flags().Changed(flag.Name),
				Set: func(text string) error {
					if text == "" && flag.DefValue == "" {
						return nil // as it is without
					}
					if err := flag.Value.Set(text); err != nil {
						return misfit(flag, text, err)
					}
					return nil
				},
			})
		})
	}
	return list
}

// fileNames are the flags of all commands.
func fileNames(root *cobra.Command) config.Names {
	names := config.Names{Refused: fileRefuses()}
	eachFlag(root, func(flag *pflag.Flag) {
		if names.Refused[flag.Name] == "" && flag.Name != "help" && !slices.Contains(names.Known, flag.Name) {
			names.Known = append(names.Known, flag.Name)
		}
	})
	return names
}

// fileRefuses are flags that do not belong into a file, with the reason. What confirms an
// act is said where it is done, and once.
func fileRefuses() map[string]string {
	return map[string]string{
		"yes":      "it confirms what one command is about to do",
		configFlag: "a file names no other file",
	}
}

// eachFlag visits the flags of a command and of those below it.
func eachFlag(command *cobra.Command, visit func(*pflag.Flag)) {
	command.Flags().VisitAll(visit)
	for _, sub := range command.Commands() {
		eachFlag(sub, visit)
	}
}

// unsaid are the faults that a validation finds in flags of which nothing was said yet: a
// value that was not understood has left its flag at the default.
func unsaid(err error, said []error) []error {
	return slices.DeleteFunc(each(err), func(fault error) bool {
		flag := strings.TrimPrefix(flagInText.FindString(fault.Error()), "--")
		return slices.ContainsFunc(said, func(s error) bool {
			known, ok := errors.AsType[*config.Fault](s)
			return ok && known.Setting == flag
		})
	})
}

// each is what errors are joined in err.
func each(err error) (list []error) {
	if err == nil {
		return nil
	}
	joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err)
	if !ok {
		return []error{err}
	}
	for _, part := range joined.Unwrap() {
		list = append(list, each(part)...)
	}
	return list
}

var flagInText = regexp.MustCompile(`--[a-z-]+`)
