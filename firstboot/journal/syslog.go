package journal

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxMessage is how long a message gets, in bytes: every receiver takes as much (RFC 5425, 4.3.1).
const maxMessage = 8192

// Facility and severity of what does not say its own (RFC 5424, 6.2.1): a daemon's, for information.
const (
	daemonFacility = 3
	information    = 6
	warning        = 4
)

// message is a syslog message (RFC 5424) in its frame (RFC 5425, 4.3).
func (e entry) message(node string, sequence uint32) []byte {
	facility, severity := number(e.fields["SYSLOG_FACILITY"], 23, daemonFacility), number(e.fields["PRIORITY"], 7, information)
	return frame(fmt.Sprintf("<%d>1 %s %s %s %s - [meta sequenceId=\"%d\"] ", facility*8+severity, e.time.Format("2006-01-02T15:04:05.000000Z"),
		word(node, 255), word(first(e.fields, "SYSLOG_IDENTIFIER", "_COMM"), 48), word(first(e.fields, "SYSLOG_PID", "_PID"), 128), sequence), e.fields["MESSAGE"])
}

// lost is the message that says how many entries were not sent.
func lost(node string, dropped uint64, now time.Time, sequence uint32) []byte {
	e := entry{time: now.UTC(), fields: map[string]string{
		"PRIORITY": strconv.Itoa(warning), "SYSLOG_IDENTIFIER": "hullmark-journal",
		"MESSAGE": fmt.Sprintf("%d entries of the journal were given up before they could be sent", dropped),
	}}
	return e.message(node, sequence)
}

// frame puts a message behind its length. What is no UTF-8 becomes U+FFFD, and what is too long is cut.
func frame(header, text string) []byte {
	const cut = " [cut]"
	text = strings.ToValidUTF8(text, "\uFFFD")
	if room := maxMessage - len(header); len(text) > room {
		text = text[:room-len(cut)]
		for len(text) > 0 && !utf8.ValidString(text[max(0, len(text)-utf8.UTFMax):]) && !utf8.RuneStart(text[len(text)-1]) {
			text = text[:len(text)-1]
		}
		text = strings.ToValidUTF8(text, "") + cut
	}
	return []byte(strconv.Itoa(len(header)+len(text)) + " " + header + text)
}

// number returns what text says, from 0 to most, or else what there is without.
func number(text string, most, without int) int {
	if n, err := strconv.Atoi(text); err == nil && n >= 0 && n <= most {
		return n
	}
	return without
}

func first(fields map[string]string, names ...string) string {
	for _, n := range names {
		if fields[n] != "" {
			return fields[n]
		}
	}
	return ""
}

// word is text as a header's field: printable ASCII without spaces, at most so long; "-" if nothing is left.
func word(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return -1
		}
		return r
	}, text)
	if text == "" {
		return "-"
	}
	return text[:min(len(text), most)]
}
