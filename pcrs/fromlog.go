package pcrs

import (
	"errors"
	"fmt"
	"slices"
)

// fromFirmware are the registers that a log says all of, where firmware cannot be had: none of them holds anything of the image.
var fromFirmware = []Register{0, 1, 2, 3, 6, 7}

// FirmwareEvents takes from the log of a boot what its firmware measured of itself, of the machine and of its settings, as Boot.Log
// uses it: the events with a digest of each bank that is predicted, and the registers that have one without, with the reason. It fails
// where the log's boot is of a form that cannot be predicted.
func FirmwareEvents(log Log) ([]Event, []Unpredicted, error) {
	if log.Format != FormatAgile || !slices.Contains(log.Banks, SHA256) {
		return nil, nil, errors.New("log: want a TPM's, with digests of sha256")
	}
	if log.Locality != 0 {
		return nil, nil, fmt.Errorf("log: PCR 0 began with locality %d, which is not predicted", log.Locality)
	}
	if err := checkBootForm(log.Of(4)); err != nil {
		return nil, nil, fmt.Errorf("log: PCR 4: %w", err)
	}
	var all []Event
	var open []Unpredicted
	for _, r := range fromFirmware {
		events, err := learnEvents(log.Of(r))
		if err != nil {
			open = append(open, Unpredicted{r, err.Error()})
			continue
		}
		all = append(all, events...)
	}
	return all, open, nil
}

// checkBootForm wants what firmware measures of a boot from a disk's default path: one attempt, and programs.
func checkBootForm(events []Event) error {
	if len(events) < 3 || events[0].Type != EvEFIAction || events[1].Type != EvSeparator {
		return errors.New("it does not begin with the call of a boot option and a separator")
	}
	for _, e := range events[2:] {
		if e.Type != EvBootServicesApplication {
			return fmt.Errorf("an event of type %v, where programs are expected", e.Type)
		}
	}
	return nil
}

// learnEvents completes the digests of events whose data is what is hashed; a bank that the log lacks is open for others.
func learnEvents(events []Event) ([]Event, error) {
	learned := make([]Event, len(events))
	for i, e := range events {
		source := e.From()
		learned[i] = Event{Register: e.Register, Type: e.Type, Digests: predictedOnly(e.Digests), Data: e.Data, Source: &source, Origin: Learned}
		for _, bank := range PredictedBanks() {
			if _, ok := learned[i].Digests[bank]; ok {
				continue
			}
			digest := bank.sum(e.Data)
			if !SHA256.sum(e.Data).Equal(e.Digests[SHA256]) {
				return nil, fmt.Errorf("the log has no %v digest of %s", bank, e.What())
			}
			learned[i].Digests[bank] = digest
		}
	}
	return learned, nil
}

// fromLog adds what a log says of the firmware, and takes Secure Boot's state from there.
func (p *predictor) fromLog() error {
	events, open, err := FirmwareEvents(*p.boot.Log)
	if err != nil {
		return err
	}
	p.open = open
	for _, e := range events {
		if s := e.From(); e.Register == 7 && s.Kind == FromSecureBoot {
			p.state = map[string]secureBootState{SecureBootOff: secureBootOff, SecureBootOn: secureBootOn}[s.Name]
		}
	}
	p.add(events...)
	if p.state != secureBootOn {
		return nil
	}
	return p.databasesFromLog(events)
}

// databasesFromLog takes db, dbx and what was measured of db out of the variables that a log holds.
func (p *predictor) databasesFromLog(events []Event) (err error) {
	values := map[string][]byte{}
	p.authorities = map[string]bool{}
	for _, e := range events {
		name, value, ok := valueOf(e)
		switch {
		case !ok:
		case e.Type == EvVariableDriverConfig:
			values[name] = value
		case e.Type == EvVariableAuthority && name == "db":
			p.authorities[string(value)] = true
		}
	}
	p.databases, err = openDatabases(values["db"], values["dbx"], values["dbt"])
	return err
}

// valueOf is the name and the value of the variable that an event of a log measures; false if it is another event, or hashes
// something else.
func valueOf(e Event) (name string, value []byte, ok bool) {
	if e.Type != EvVariableDriverConfig && e.Type != EvVariableAuthority || !SHA256.sum(e.Data).Equal(e.Digests[SHA256]) {
		return "", nil, false
	}
	name, size, ok := variableOf(e.Data)
	if !ok || size > uint64(len(e.Data)) {
		return "", nil, false
	}
	return name, e.Data[uint64(len(e.Data))-size:], true
}
