/* A wall clock that steps on purpose: preloaded into a node (LD_PRELOAD), it shifts the time of day.

   SICK_CLOCK    a file with one 64-bit number in the machine's order, shared with the test that steers: by how
                 many ns the wall clock is off

   Only what Python asks is shifted (its program and library, by the caller's address): libraries that wait until a
   time of day (librdkafka's) hand that to the kernel, whose clock did not step. Clocks that never go back are left
   alone, as a step leaves them. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define RANGES_MAX 16
#define SECOND_NS 1000000000ll
#define REAL(name) ({ static typeof(&name) found; if (!found) found = (typeof(&name))dlsym(RTLD_NEXT, #name); found; })
#define OFFSET_NS() (offset && is_python(__builtin_return_address(0)) ? *offset : 0)

static volatile int64_t *offset;
static struct { uintptr_t from, until; } ranges[RANGES_MAX];
static int range_count;

static int is_python(const void *caller) {
    for (int n = 0; n < range_count; n++)
        if ((uintptr_t)caller >= ranges[n].from && (uintptr_t)caller < ranges[n].until) return 1;
    return 0;
}

static int look_at(struct dl_phdr_info *found, size_t size, void *nothing) {
    (void)size, (void)nothing;
    const char *slash = strrchr(found->dlpi_name, '/'), *name = slash ? slash + 1 : found->dlpi_name;
    if (*name && strncmp(name, "libpython", 9)) return 0; /* the program itself has no name */
    for (int n = 0; n < found->dlpi_phnum && range_count < RANGES_MAX; n++) {
        if (found->dlpi_phdr[n].p_type != PT_LOAD) continue;
        ranges[range_count].from = found->dlpi_addr + found->dlpi_phdr[n].p_vaddr;
        ranges[range_count].until = ranges[range_count].from + found->dlpi_phdr[n].p_memsz;
        range_count++;
    }
    return 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *steering = getenv("SICK_CLOCK");
    int descriptor = steering ? open(steering, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (mapped == MAP_FAILED) return;
    dl_iterate_phdr(look_at, NULL);
    offset = mapped;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int64_t off_ns = which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE ? OFFSET_NS() : 0;
    int done = REAL(clock_gettime)(which, now);
    if (done || !off_ns) return done;
    int64_t ns = now->tv_sec * SECOND_NS + now->tv_nsec + off_ns;
    now->tv_sec = ns / SECOND_NS, now->tv_nsec = ns % SECOND_NS;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int64_t off_ns = OFFSET_NS();
    int done = REAL(gettimeofday)(now, zone);
    if (done || !now || !off_ns) return done;
    int64_t us = now->tv_sec * 1000000ll + now->tv_usec + off_ns / 1000;
    now->tv_sec = us / 1000000, now->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *kept) {
    int64_t off_ns = OFFSET_NS();
    struct timespec now;
    if (REAL(clock_gettime)(CLOCK_REALTIME, &now)) return (time_t)-1;
    time_t told = (now.tv_sec * SECOND_NS + now.tv_nsec + off_ns) / SECOND_NS;
    if (kept) *kept = told;
    return told;
}
