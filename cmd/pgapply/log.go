package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"

	"pgapply/internal/plain"
	"pgapply/operate"
)

// logOptions say how to log. Logs go to stderr; stdout is for what was asked for.
type logOptions struct{ format, level string }

func defaultLogOptions(level string) logOptions { return logOptions{format: "console", level: level} }

func (o *logOptions) flags(flags *pflag.FlagSet) {
	flags.StringVar(&o.format, "log-format", o.format, "`FORMAT`: console, or json for one object a line")
	flags.StringVar(&o.level, "log-level", o.level, "least `LEVEL`: debug, info, warn or error")
}

// logger returns the log of a subscription, or of none, and reports a value that it does
// not know.
func (o *logOptions) logger(to io.Writer, subscription string) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(o.level)
	if err != nil || level < zap.DebugLevel || level > zap.ErrorLevel {
		return nil, fmt.Errorf("--log-level %q is not one of debug, info, warn, error", o.level)
	}
	config := zap.NewProductionEncoderConfig()
	config.TimeKey = "time"
	config.EncodeTime = zapcore.TimeEncoderOfLayout(time.RFC3339Nano)
	config.EncodeDuration = zapcore.StringDurationEncoder
	var encoder zapcore.Encoder
	switch o.format {
	case "json":
		encoder = zapcore.NewJSONEncoder(config)
	case "console":
		config.EncodeTime = zapcore.TimeEncoderOfLayout("2006-01-02 15:04:05.000")
		config.EncodeLevel = zapcore.CapitalLevelEncoder
		config.ConsoleSeparator = "  "
		encoder = plainEncoder{zapcore.NewConsoleEncoder(config)}
	default:
		return nil, fmt.Errorf("--log-format %q is not one of console, json", o.format)
	}
	core := zapcore.NewCore(hintEncoder{encoder, subscription}, zapcore.Lock(zapcore.AddSync(to)), level)
	// A table that has drifted would otherwise write a line for each row.
	return zap.New(zapcore.NewSamplerWithOptions(core, time.Second, 100, 1000)), nil
}

// hintEncoder has hints name the subscription, and leaves out those that are empty.
type hintEncoder struct {
	zapcore.Encoder
	subscription string
}

// Clone keeps what it is.
func (e hintEncoder) Clone() zapcore.Encoder { return hintEncoder{e.Encoder.Clone(), e.subscription} }

// EncodeEntry writes one entry. The fields belong to the caller.
func (e hintEncoder) EncodeEntry(entry zapcore.Entry, fields []zapcore.Field) (*buffer.Buffer, error) {
	entry.Message = operate.Named(entry.Message, e.subscription)
	shown := make([]zapcore.Field, 0, len(fields))
	for _, field := range fields {
		if field.Key == "hint" && field.Type == zapcore.StringType {
			if field.String == "" {
				continue
			}
			field.String = operate.Named(field.String, e.subscription)
		}
		shown = append(shown, field)
	}
	return e.Encoder.EncodeEntry(entry, shown)
}

// plainEncoder writes entries as one plain line each: messages and fields hold names, and
// what a server says. The JSON of the fields escapes less than a terminal obeys.
type plainEncoder struct{ zapcore.Encoder }

// Clone keeps what it is.
func (e plainEncoder) Clone() zapcore.Encoder { return plainEncoder{e.Encoder.Clone()} }

// EncodeEntry writes one entry.
func (e plainEncoder) EncodeEntry(entry zapcore.Entry, fields []zapcore.Field) (*buffer.Buffer, error) {
	encoded, err := e.Encoder.EncodeEntry(entry, fields)
	if err != nil {
		return nil, err
	}
	line := plain.Line(strings.TrimSuffix(encoded.String(), zapcore.DefaultLineEnding))
	encoded.Reset()
	encoded.AppendString(line + zapcore.DefaultLineEnding)
	return encoded, nil
}
