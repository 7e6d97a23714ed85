package firstboot

import (
	"regexp"
	"strings"
)

// dots is how many dots a large letter is wide and high. It is as low as letters can be: a name and a word leave nearly half of a screen of
// 24 rows to sentences.
const dots = 5

// sheet has the large letters, side by side with a column between: capitals, since the names of nodes do not tell these from small ones.
var sheet = []struct {
	letters string
	rows    [dots]string
}{
	{"ABCDEFGHIJKLM", [dots]string{
		" ###  ####   #### ####  ##### #####  #### #   #  ###    ### #   # #     #   #",
		"#   # #   # #     #   # #     #     #     #   #   #      #  #  #  #     ## ##",
		"##### ####  #     #   # ####  ####  #  ## #####   #      #  ###   #     # # #",
		"#   # #   # #     #   # #     #     #   # #   #   #   #  #  #  #  #     #   #",
		"#   # ####   #### ####  ##### #      #### #   #  ###   ##   #   # ##### #   #",
	}},
	{"NOPQRSTUVWXYZ", [dots]string{
		"#   #  ###  ####   ###  ####   #### ##### #   # #   # #   # #   # #   # #####",
		"##  # #   # #   # #   # #   # #       #   #   # #   # #   #  # #   # #     # ",
		"# # # #   # ####  # # # ####   ###    #   #   # #   # # # #   #     #     #  ",
		"#  ## #   # #     #  #  #  #      #   #   #   #  # #  ## ##  # #    #    #   ",
		"#   #  ###  #      ## # #   # ####    #    ###    #   #   # #   #   #   #####",
	}},
	{"0123456789-.:", [dots]string{
		" ###    #   ####  ####  #  #  #####  ###  #####  ###   ###                   ",
		"#  ##  ##       #     # #  #  #     #         # #   # #   #               #  ",
		"# # #   #    ###   ###  ##### ####  ####     #   ###   ####  ###             ",
		"##  #   #   #         #    #      # #   #   #   #   #     #        ##     #  ",
		" ###   ###  ##### ####     #  ####   ###    #    ###   ###         ##        ",
	}},
}

// enlarged draws a text in letters whose dots are so many columns wide and rows high: '#' where a dot is. Of a text with a letter that
// is not on the sheet there is no such drawing.
func enlarged(text string, wide, high int) (lines []string) {
	var rows [dots]string
	for _, letter := range strings.ToUpper(text) {
		picture, ok := pictureOf(letter)
		if !ok {
			return nil
		}
		for y := range rows {
			for _, dot := range picture[y] + " " {
				rows[y] += strings.Repeat(string(dot), wide)
			}
		}
	}
	for _, row := range rows {
		for range high {
			lines = append(lines, strings.TrimRight(row, " "))
		}
	}
	return lines
}

func pictureOf(letter rune) (picture [dots]string, ok bool) {
	for _, band := range sheet {
		at := strings.IndexRune(band.letters, letter)
		if at < 0 {
			continue
		}
		for y, row := range band.rows {
			picture[y] = row[at*(dots+1):][:dots]
		}
		return picture, true
	}
	return picture, false
}

var dotsInRow = regexp.MustCompile("#+")

// inBlocks is a line of a drawing for the screen. A dot is a blank in reverse video, which every font has; blocks only some have.
func inBlocks(style, line string) string {
	return dotsInRow.ReplaceAllStringFunc(line, func(row string) string {
		return style + reverse + strings.Repeat(" ", len(row)) + plain
	})
}
