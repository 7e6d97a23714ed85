package pcrs

// Step is one place in the history of a register, seen from both sides.
type Step struct {
	// Expected is the predicted event, nil if none was predicted here.
	Expected *Event
	// Measured is the log's event, nil if the log has none here. One of both is there.
	Measured *Event
}

// Same reports whether what was predicted is what happened.
func (s Step) Same(bank Bank) bool {
	return s.Expected != nil && s.Measured != nil && s.Expected.Digests[bank].Equal(s.Measured.Digests[bank])
}

// Align puts the predicted events of a register beside those of a log, for
// people to compare. Both keep their order; as many as can be stand beside an
// event of the same digest, and what lies between these is paired from its
// beginning. It takes memory for each pair of a predicted and a measured event,
// 2 bytes, which MaxEvents bounds.
func Align(bank Bank, expected, measured []Event) []Step {
	common := commonEvents(bank, expected, measured)
	var out []Step
	i, j := 0, 0
	for i < len(expected) && j < len(measured) {
		step := Step{Expected: &expected[i], Measured: &measured[j]}
		switch here := common[i][j]; {
		case step.Same(bank), common[i+1][j+1] == here:
			i, j = i+1, j+1
		case common[i+1][j] == here:
			step.Measured, i = nil, i+1
		default:
			step.Expected, j = nil, j+1
		}
		out = append(out, step)
	}
	for ; i < len(expected); i++ {
		out = append(out, Step{Expected: &expected[i]})
	}
	for ; j < len(measured); j++ {
		out = append(out, Step{Measured: &measured[j]})
	}
	return out
}

// commonEvents counts at [i][j] how many events of expected[i:] can stand beside an equal one of measured[j:], in order.
func commonEvents(bank Bank, expected, measured []Event) [][]uint16 {
	common := make([][]uint16, len(expected)+1)
	for i := range common {
		common[i] = make([]uint16, len(measured)+1)
	}
	for i := len(expected) - 1; i >= 0; i-- {
		for j := len(measured) - 1; j >= 0; j-- {
			if expected[i].Digests[bank].Equal(measured[j].Digests[bank]) {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	return common
}
