/* A wall clock that can be set while a program runs: preloaded, it moves the time of day by as many
 * seconds as the file named by SOAK_CLOCK holds (one 64-bit integer). Monotonic clocks, and with
 * them sleeping and waiting, stay as they are, as on a machine whose clock somebody sets. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;

__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("SOAK_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *map = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
        ahead = map == MAP_FAILED ? NULL : map;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}
