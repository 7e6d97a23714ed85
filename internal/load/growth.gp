# Draws the table that make bench-growth writes: gnuplot -e 'csv="out/growth-group.csv"; svg="docs/growth.svg"' internal/load/growth.gp
# (apt-get install gnuplot-nox)
set terminal svg size 960,720 font "sans-serif,12" background "#ffffff"
set output svg
set datafile separator ","
set key left top reverse Left
set grid ytics lc rgb "#dddddd"
set xlabel "machines"
set xrange [0:*]
set yrange [0:*]
set style data linespoints
set pointsize 0.5
set multiplot layout 2,2
set title "Joins, 20 at a time"
set key left bottom
set ylabel "ms"
set y2label "a second"
set ytics nomirror
set y2tics
set y2range [0:*]
plot csv using "machines":"ticket p50 ms" title "a ticket, half", "" using "machines":"ticket p99 ms" title "99 of 100", "" using "machines":"joins/s" axes x1y2 title "joins a second"
unset y2label
unset y2tics
unset y2range
set ytics mirror
set title "Calls of the API"
set key left top
set ylabel ""
plot csv using "machines":"API calls a join" title "a join", "" using "machines":"API calls a reboot" title "a reboot", "" using "machines":"API calls/s at rest" title "a second at rest"
set title "Memory at rest, the larger of two"
set ylabel "MiB"
plot csv using "machines":"API server MiB at rest" title "API server", "" using "machines":"etcd MiB at rest" title "etcd", "" using "machines":"join service MiB at rest" title "join service", "" using "machines":"controllers MiB at rest" title "controllers"
set title "All ask at once, after a power cut"
set ylabel "s"
plot csv using "machines":"half are back s" title "half have their tickets", "" using "machines":"all are back s" title "all have"
unset multiplot
