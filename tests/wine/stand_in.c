/* Stand-in for TMLoader.exe and TmForever.exe, by the program's own name, for tests under Wine.
 *
 * `TMLoader.exe run TmForever PROFILE OPTION...` starts the game, which is beside it, and ends. The game opens its window,
 * gets the port of a simulated game as a line of text from port 18400, and passes bytes between that game and the clients
 * of its own port, that of `/configstring=set custom_port N`. The connection to port 18400 ends with the game.
 *
 * faults.txt beside the programs is read once and deleted: "die" ends the game at once, "again" makes it start itself anew,
 * "child" makes it start a helper, "hang" makes it stand still 3 s after the first client's connection.
 */
#include <winsock2.h>
#include <windows.h>
#include <stdio.h>
#include <wchar.h>

#define BACKEND_PORT 18400

static wchar_t folder[MAX_PATH], program[MAX_PATH];
static char faults[200];
static volatile LONG has_client;
static volatile BOOL stands_still;

struct way { SOCKET from, to; };

static SOCKET connected(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((u_short)port)};
    SOCKET made = socket(AF_INET, SOCK_STREAM, 0);
    int on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(made, (struct sockaddr *)&address, sizeof address))
        ExitProcess(8);
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, (char *)&on, sizeof on);
    return made;
}

static DWORD WINAPI pass_on(void *given)
{
    struct way way = *(struct way *)given;
    char bytes[65536];
    int n, sent, part;
    while ((n = recv(way.from, bytes, sizeof bytes, 0)) > 0) {
        while (stands_still)
            Sleep(20);
        for (sent = 0; sent < n; sent += part)
            if ((part = send(way.to, bytes + sent, n - sent, 0)) <= 0)
                break;
    }
    while (stands_still) /* also the end of a connection */
        Sleep(20);
    shutdown(way.from, SD_BOTH);
    shutdown(way.to, SD_BOTH);
    return 0;
}

__attribute__((noreturn)) static DWORD WINAPI serve(void *given)
{
    int own_port = *(int *)given, game_port, on = 1;
    char line[20] = "";
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((u_short)own_port)};
    SOCKET listener = socket(AF_INET, SOCK_STREAM, 0), lease = connected(BACKEND_PORT);
    recv(lease, line, sizeof line - 1, 0);
    game_port = atoi(line);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    while (bind(listener, (struct sockaddr *)&address, sizeof address))
        Sleep(200);
    listen(listener, 4);
    for (;;) {
        struct way *ways = malloc(2 * sizeof *ways);
        ways[0].from = ways[1].to = accept(listener, NULL, NULL);
        setsockopt(ways[0].from, IPPROTO_TCP, TCP_NODELAY, (char *)&on, sizeof on);
        ways[0].to = ways[1].from = connected(game_port);
        has_client = 1;
        CreateThread(NULL, 0, pass_on, &ways[0], 0, NULL);
        CreateThread(NULL, 0, pass_on, &ways[1], 0, NULL);
    }
}

static void start(const wchar_t *name, const wchar_t *options)
{
    static wchar_t line[4096];
    STARTUPINFOW startup = {.cb = sizeof startup};
    PROCESS_INFORMATION made;
    swprintf(line, 4096, L"\"%ls\\%ls\" %ls", folder, name, options);
    CreateProcessW(NULL, line, NULL, NULL, FALSE, 0, NULL, folder, &startup, &made);
}

static void read_faults(void)
{
    wchar_t file[MAX_PATH];
    FILE *opened;
    swprintf(file, MAX_PATH, L"%ls\\faults.txt", folder);
    if ((opened = _wfopen(file, L"rb"))) {
        faults[fread(faults, 1, sizeof faults - 1, opened)] = 0;
        fclose(opened);
        DeleteFileW(file);
    }
}

static int play(const wchar_t *options)
{
    static int port;
    WSADATA data;
    MSG message;
    DWORD hangs_at = 0;
    const wchar_t *found = wcsstr(options, L"custom_port ");
    port = found ? _wtoi(found + 12) : 8478;
    read_faults();
    if (strstr(faults, "die"))
        return 3;
    if (strstr(faults, "again")) {
        Sleep(1000);
        start(program, options);
        return 0;
    }
    if (strstr(faults, "child"))
        start(L"Helper.exe", L"");
    if (!CreateWindowW(L"STATIC", L"TrackMania Modded", WS_OVERLAPPEDWINDOW | WS_VISIBLE, 0, 0, 640, 480, NULL, NULL, NULL, NULL))
        return 4;
    WSAStartup(MAKEWORD(2, 2), &data);
    CreateThread(NULL, 0, serve, &port, 0, NULL);
    for (;;) {
        while (!stands_still && PeekMessageW(&message, NULL, 0, 0, PM_REMOVE))
            DispatchMessageW(&message);
        if (strstr(faults, "hang") && has_client && !hangs_at)
            hangs_at = GetTickCount() + 3000;
        stands_still = hangs_at && GetTickCount() > hangs_at;
        Sleep(20);
    }
}

int WINAPI wWinMain(HINSTANCE instance, HINSTANCE before, wchar_t *options, int show)
{
    (void)instance, (void)before, (void)show;
    GetModuleFileNameW(NULL, folder, MAX_PATH);
    wcscpy(program, wcsrchr(folder, L'\\') + 1);
    *wcsrchr(folder, L'\\') = 0;
    if (!wcsicmp(program, L"TmForever.exe"))
        return play(options);
    if (!wcsicmp(program, L"Helper.exe"))
        Sleep(600000);
    else if (wcsstr(options, L"run TmForever"))
        start(L"TmForever.exe", wcsstr(options, L"/configstring") ? wcsstr(options, L"/configstring") - 1 : L"");
    return 0;
}
