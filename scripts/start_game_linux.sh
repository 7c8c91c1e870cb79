#!/bin/sh
# Starts TrackMania Nations Forever with TMInterface on Linux, through Wine or Steam's Proton.
#
#   sh start_game_linux.sh PORT    one game that listens at PORT: game_command = "sh .../start_game_linux.sh {port}"
#   sh start_game_linux.sh         TMLoader's own window, in which TMInterface is switched on
#   sh start_game_linux.sh FILE    another Windows program, such as .../TmForeverLauncher.exe
#
# It finds what it needs in the usual places; where yours differ, set variables before it, as in
# game_command = "env PROTON=/path/to/proton sh .../start_game_linux.sh {port}":
#
#   TMLOADER           TMLoader's program                     default: ~/TMLoader/TMLoader.exe
#   TMLOADER_PROFILE   its profile that loads TMInterface     default: default
#   WINE               Wine's program                         default: wine, if it is installed
#   WINEPREFIX         Wine's folder with drive C:            default: Wine's own, ~/.wine
#   PROTON             Proton's program; it is used in place of Wine. Default without Wine: Steam's newest Proton
#   STEAM              Steam's folder                         default: ~/.steam/steam
#   STEAM_LIBRARY      the library that has the game          default: Steam's folder
set -eu

fail() {
    echo "start_game_linux.sh: $1" >&2
    exit 1
}

tmloader=${TMLOADER:-$HOME/TMLoader/TMLoader.exe}
profile=${TMLOADER_PROFILE:-default}
wine=${WINE:-wine}
proton=${PROTON:-}
steam=${STEAM:-$HOME/.steam/steam}
library=${STEAM_LIBRARY:-$steam}

# Steam's number of the game, under which Proton keeps its folder with drive C:.
steam_number=11020

[ $# -le 1 ] || fail "one port, one program, or nothing: see the head of this file"
[ -n "${DISPLAY:-}${WAYLAND_DISPLAY:-}" ] || fail "DISPLAY is not set, so no window can open: log in to a desktop, or start Xvfb"
[ -f "$tmloader" ] || fail "there is no $tmloader: unpack TMLoader there, or set TMLOADER"

newest_proton() {
    for library_of_tools in "$steam" "$library"; do
        for names in 'Proton [0-9]*' 'Proton*'; do
            find "$library_of_tools/steamapps/common/" -maxdepth 2 -path "*/$names/proton" 2> /dev/null | sort -V | tail -n 1
        done
    done | head -n 1
}

if [ -z "$proton" ] && ! command -v "$wine" > /dev/null; then
    proton=$(newest_proton)
    [ -n "$proton" ] || fail "found neither $wine nor a Proton in $steam: install one, or set WINE, PROTON or STEAM"
fi

start() {
    if [ -n "$proton" ]; then
        [ -f "$proton" ] || fail "there is no $proton: correct PROTON"
        export STEAM_COMPAT_CLIENT_INSTALL_PATH="${STEAM_COMPAT_CLIENT_INSTALL_PATH:-$steam}"
        export STEAM_COMPAT_DATA_PATH="${STEAM_COMPAT_DATA_PATH:-$library/steamapps/compatdata/$steam_number}"
        [ -d "$STEAM_COMPAT_DATA_PATH" ] || fail "there is no $STEAM_COMPAT_DATA_PATH: start the game from Steam once"
        exec "$proton" run "$@"
    fi
    exec "$wine" "$@"
}

program=$tmloader
case ${1:-} in
    "") set -- ;;
    *[!0-9]*)
        [ -f "$1" ] || fail "$1 is no port, and no file"
        program=$1
        set --
        ;;
    *) set -- run TmForever "$profile" "/configstring=set custom_port $1" ;;
esac
cd "$(dirname "$program")"
start "$PWD/$(basename "$program")" "$@"
