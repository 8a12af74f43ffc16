/* A disk that is sick on purpose: preloaded into a broker (LD_PRELOAD), it stands between it and its store.

   SICK_ROOT     what lies under this folder is on the sick disk
   SICK_CONTROL  a file of 64-bit numbers in the machine's order, shared with the test that steers (`enum number`)

   Calls fail (EIO), find no room (ENOSPC), write less than asked, take long; all by chance, from a seed.

   A death (`DIE`, or `DIE_AFTER` so many calls, of `DIE_KIND` if that is set, so between any two of them) is a kill -9 or, with POWER, a power
   cut: of each write that was not synced since, nothing, all or a prefix stays. The bytes below each write are
   kept until a sync of its file has succeeded. What a sync was asked for and refused stays lost, whatever later
   syncs say, unless it is written again: kernels report a lost page once.

   Not modelled: names (create, rename, unlink) are durable at once, as they are where the broker syncs folders. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum number {
    ARMED, SEED, DIE, DIE_AFTER, DIE_KIND, POWER, FULL, ROOM, TELL_ROOM, SHORT_PPM, SLOW_PPM, SLOW_US_MAX,
    FAIL_PPM, /* of the kinds below, in this order */
    OPENS = FAIL_PPM, READS, WRITES, SYNCS, ALLOCATES, TRUNCATES, RENAMES, UNLINKS, MMAPS,
    CALLS, FAILED, FILLED, SHORTENED, SLOWED, KEPT, UNDONE, TORN, CURSED, NUMBERS
};

#define DESCRIPTORS_MAX 65536
#define SECTOR_BYTES 512

struct write { /* what lay below a write that is not synced */
    struct write *older;
    uint64_t dev, ino;
    off_t at, size_before;
    size_t length, length_before;
    int cursed;
    char before[];
};

struct file { struct file *next; uint64_t dev, ino; int descriptor; unsigned failures; };

static volatile int64_t *control;
static char root[4096];
static size_t root_length;
static unsigned char sick[DESCRIPTORS_MAX];
static unsigned heard[DESCRIPTORS_MAX]; /* failures of its file that a descriptor was told, or opened after */
static pthread_rwlock_t world = PTHREAD_RWLOCK_INITIALIZER;
static pthread_mutex_t journal = PTHREAD_MUTEX_INITIALIZER;
static struct write *newest;
static struct file *files;
static uint64_t chance_state;

#define REAL(name) ({ static typeof(&name) found; if (!found) found = (typeof(&name))dlsym(RTLD_NEXT, #name); found; })

static uint64_t chance(uint64_t below) {
    uint64_t x = __atomic_add_fetch(&chance_state, 0x9E3779B97F4A7C15ull, __ATOMIC_RELAXED);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return below ? (x ^ (x >> 31)) % below : 0;
}

static int happens(int64_t ppm) {
    return ppm > 0 && (int64_t)chance(1000000) < ppm;
}

static void count(enum number which) {
    __atomic_add_fetch(&control[which], 1, __ATOMIC_RELAXED);
}

static int under_root(const char *path) {
    char whole[4096];
    if (!control || !path) return 0;
    if (path[0] != '/') {
        if (!getcwd(whole, sizeof whole / 2) || strlen(path) >= sizeof whole / 2 - 2) return 0;
        strcat(strcat(whole, "/"), path);
        path = whole;
    }
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int is_sick(int descriptor) {
    return control && descriptor >= 0 && descriptor < DESCRIPTORS_MAX && sick[descriptor];
}

/* Deaths. */

static int undo_descriptor(struct write *one) {
    for (struct file *file = files; file; file = file->next)
        if (file->dev == one->dev && file->ino == one->ino) return file->descriptor;
    return -1;
}

static void undo(struct write *one, size_t stays) {
    int descriptor = undo_descriptor(one);
    struct stat now;
    if (descriptor < 0 || fstat(descriptor, &now)) return;
    off_t from = one->at + stays, end = one->at + one->length;
    if (stays < one->length_before)
        (void)!REAL(pwrite64)(descriptor, one->before + stays, one->length_before - stays, from);
    off_t beyond = one->at + (off_t)one->length_before > from ? one->at + (off_t)one->length_before : from;
    if (end > one->size_before && now.st_size <= end) {
        (void)!REAL(ftruncate64)(descriptor, beyond > one->size_before ? beyond : one->size_before);
    } else if (beyond < end) {
        char *zeros = calloc(1, end - beyond);
        (void)!REAL(pwrite64)(descriptor, zeros, end - beyond, beyond);
        free(zeros);
    }
}

static void cut_power(void) {
    for (struct write *one = newest; one; one = one->older) {
        uint64_t fate = chance(10);
        if (one->cursed || fate >= 6) { undo(one, 0); count(UNDONE); }
        else if (fate >= 4) { undo(one, chance(one->length / SECTOR_BYTES + 1) * SECTOR_BYTES); count(TORN); }
        else count(KEPT);
    }
}

static void *watch(void *nothing) {
    (void)nothing;
    struct timespec pause = {0, 1000000};
    while (!control[DIE]) nanosleep(&pause, NULL);
    for (int tries = 0; tries < 500 && pthread_rwlock_trywrlock(&world); tries++) nanosleep(&pause, NULL);
    if (control[POWER]) cut_power();
    kill(getpid(), SIGKILL);
    return NULL;
}

__attribute__((constructor)) static void begin(void) {
    const char *where = getenv("SICK_ROOT"), *steering = getenv("SICK_CONTROL");
    if (!where || !steering) return;
    int descriptor = REAL(open64)(steering, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return;
    strncpy(root, where, sizeof root - 1);
    root_length = strlen(root);
    void *mapped = REAL(mmap64)(NULL, NUMBERS * 8, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) return;
    control = mapped;
    chance_state = control[SEED];
    pthread_t watcher;
    pthread_create(&watcher, NULL, watch, NULL);
}

/* What every call goes through: returns the errno that it fails with, or 0. Ends with `leave`. */

static int enter(enum number kind) {
    if (!control[ARMED]) { pthread_rwlock_rdlock(&world); return 0; }
    if (happens(control[SLOW_PPM])) {
        struct timespec pause = {0, (long)chance(control[SLOW_US_MAX] + 1) * 1000};
        count(SLOWED);
        nanosleep(&pause, NULL);
    }
    int counts = !control[DIE_KIND] || control[DIE_KIND] == (int64_t)kind;
    if (counts && control[DIE_AFTER] > 0 && __atomic_sub_fetch(&control[DIE_AFTER], 1, __ATOMIC_SEQ_CST) == 0) {
        control[DIE] = 1;
        for (;;) pause();
    }
    pthread_rwlock_rdlock(&world);
    count(CALLS);
    if (happens(control[kind])) { count(FAILED); return EIO; }
    return 0;
}

static void leave(void) {
    int kept = errno;
    pthread_rwlock_unlock(&world);
    errno = kept;
}

static int refuse(int number) {
    pthread_rwlock_unlock(&world);
    errno = number;
    return -1;
}

/* Room: how much a call would take of it; what is freed comes back. */

static int has_room(int64_t wanted) {
    if (!control[ARMED] || !control[FULL] || wanted <= 0) return 1;
    if (control[ROOM] < wanted) { count(FILLED); return 0; }
    __atomic_sub_fetch(&control[ROOM], wanted, __ATOMIC_RELAXED);
    return 1;
}

static void free_room(int64_t freed) {
    if (control[FULL] && freed > 0) __atomic_add_fetch(&control[ROOM], freed, __ATOMIC_RELAXED);
}

static int64_t bytes_of(const char *path) {
    struct stat found;
    return !stat(path, &found) && S_ISREG(found.st_mode) && found.st_nlink == 1 ? found.st_blocks * 512 : 0;
}

/* The journal of writes that are not synced. */

static void forget(uint64_t dev, uint64_t ino, off_t from, off_t until, int cursed_too) {
    for (struct write **at = &newest; *at;) {
        struct write *one = *at;
        off_t end = one->at + (off_t)one->length;
        int is_meant = one->dev == dev && one->ino == ino && (cursed_too || !one->cursed);
        if (is_meant && one->at >= from && end <= until) {
            *at = one->older;
            free(one);
            continue;
        }
        if (is_meant && one->at < from && end > from) { /* its end, or with it its middle */
            one->length = from - one->at;
            if (one->length_before > one->length) one->length_before = one->length;
        } else if (is_meant && one->at < until && end > until) { /* its beginning */
            size_t gone = until - one->at, left = one->length_before > gone ? one->length_before - gone : 0;
            memmove(one->before, one->before + gone, left);
            one->at = until, one->length -= gone, one->length_before = left;
        }
        at = &one->older;
    }
}

static struct file *file_of(int descriptor, struct stat *found) {
    struct file *file = files;
    while (file && (file->dev != found->st_dev || file->ino != found->st_ino)) file = file->next;
    if (!file && (file = calloc(1, sizeof *file))) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
        file->dev = found->st_dev, file->ino = found->st_ino, file->next = files;
        file->descriptor = REAL(open64)(path, O_RDWR | O_CLOEXEC);
        files = file;
    }
    return file;
}

static void note_open(int descriptor) {
    struct stat found;
    if (!control[POWER] || fstat(descriptor, &found) || !S_ISREG(found.st_mode)) return;
    pthread_mutex_lock(&journal);
    struct file *file = file_of(descriptor, &found);
    heard[descriptor] = file ? file->failures : 0;
    pthread_mutex_unlock(&journal);
}

static void note(int descriptor, off_t at, size_t length) {
    struct stat found;
    if (!control[POWER] || fstat(descriptor, &found)) return;
    size_t there = found.st_size > at ? (size_t)(found.st_size - at) : 0;
    if (there > length) there = length;
    struct write *one = malloc(sizeof *one + there);
    if (!one) return;
    ssize_t got = there ? REAL(pread64)(descriptor, one->before, there, at) : 0;
    one->dev = found.st_dev, one->ino = found.st_ino, one->at = at, one->length = length;
    one->size_before = found.st_size, one->length_before = got > 0 ? got : 0, one->cursed = 0;
    pthread_mutex_lock(&journal);
    forget(one->dev, one->ino, at, at + length, 1); /* written over as a whole: what was lost is there again */
    one->older = newest;
    newest = one;
    file_of(descriptor, &found);
    pthread_mutex_unlock(&journal);
}

/* A failure is told once to each descriptor that was open before it, as Linux does; others believe all is well. */
static int note_sync(int descriptor, int failed) {
    struct stat found;
    if (!control[POWER] || fstat(descriptor, &found) || !S_ISREG(found.st_mode)) return failed;
    pthread_mutex_lock(&journal);
    struct file *file = file_of(descriptor, &found);
    if (failed && file) file->failures++;
    if (file && heard[descriptor] != file->failures) {
        heard[descriptor] = file->failures;
        failed = EIO;
    }
    if (!failed) forget(found.st_dev, found.st_ino, 0, INT64_MAX, 0);
    for (struct write *one = newest; failed && one; one = one->older)
        if (one->dev == found.st_dev && one->ino == found.st_ino && !one->cursed) one->cursed = 1, count(CURSED);
    pthread_mutex_unlock(&journal);
    return failed;
}

/* The calls. */

static int open_as(const char *path, int flags, mode_t mode) {
    if (!under_root(path)) return REAL(open64)(path, flags, mode);
    int failed = enter(OPENS);
    if (failed) return refuse(failed);
    if ((flags & O_CREAT) && access(path, F_OK) && control[FULL] && control[ROOM] <= 0 && !has_room(1))
        return refuse(ENOSPC);
    if (flags & O_TRUNC) free_room(bytes_of(path));
    int opened = REAL(open64)(path, flags, mode);
    size_t length = strlen(path);
    int is_lock = length >= 5 && !strcmp(path + length - 5, "/lock"); /* closing any descriptor would unlock it */
    if (opened >= 0 && opened < DESCRIPTORS_MAX) sick[opened] = !is_lock;
    if (is_sick(opened)) note_open(opened);
    leave();
    return opened;
}

#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

int open(const char *path, int flags, ...) { MODE(flags) return open_as(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_as(path, flags, mode); }

int close(int descriptor) {
    if (control && descriptor >= 0 && descriptor < DESCRIPTORS_MAX) sick[descriptor] = 0;
    return REAL(close)(descriptor);
}

int dup2(int from, int to) {
    int made = REAL(dup2)(from, to);
    if (control && made >= 0 && made < DESCRIPTORS_MAX) sick[made] = is_sick(from);
    return made;
}

int dup3(int from, int to, int flags) {
    int made = REAL(dup3)(from, to, flags);
    if (control && made >= 0 && made < DESCRIPTORS_MAX) sick[made] = is_sick(from);
    return made;
}

static ssize_t pread_as(int descriptor, void *into, size_t length, off64_t at) {
    if (!is_sick(descriptor)) return REAL(pread64)(descriptor, into, length, at);
    int failed = enter(READS);
    if (failed) return refuse(failed);
    ssize_t got = REAL(pread64)(descriptor, into, length, at);
    leave();
    return got;
}

ssize_t pread(int descriptor, void *into, size_t length, off_t at) { return pread_as(descriptor, into, length, at); }
ssize_t pread64(int descriptor, void *into, size_t length, off64_t at) { return pread_as(descriptor, into, length, at); }

ssize_t read(int descriptor, void *into, size_t length) {
    if (!is_sick(descriptor)) return REAL(read)(descriptor, into, length);
    int failed = enter(READS);
    if (failed) return refuse(failed);
    ssize_t got = REAL(read)(descriptor, into, length);
    leave();
    return got;
}

static ssize_t write_as(int descriptor, const void *from, size_t length, off64_t at, int moves) {
    int failed = enter(WRITES);
    if (failed) return refuse(failed);
    if (moves) at = lseek(descriptor, 0, SEEK_CUR);
    if (control[ARMED] && length > 1 && happens(control[SHORT_PPM])) {
        length = 1 + chance(length - 1);
        count(SHORTENED);
    }
    struct stat found;
    int64_t grows = !fstat(descriptor, &found) ? (int64_t)(at + length) - found.st_size : 0;
    if (!has_room(grows)) return refuse(ENOSPC);
    note(descriptor, at, length);
    ssize_t done = moves ? REAL(write)(descriptor, from, length) : REAL(pwrite64)(descriptor, from, length, at);
    leave();
    return done;
}

ssize_t pwrite(int descriptor, const void *from, size_t length, off_t at) {
    return is_sick(descriptor) ? write_as(descriptor, from, length, at, 0) : REAL(pwrite)(descriptor, from, length, at);
}

ssize_t pwrite64(int descriptor, const void *from, size_t length, off64_t at) {
    return is_sick(descriptor) ? write_as(descriptor, from, length, at, 0)
                               : REAL(pwrite64)(descriptor, from, length, at);
}

ssize_t write(int descriptor, const void *from, size_t length) {
    return is_sick(descriptor) ? write_as(descriptor, from, length, 0, 1) : REAL(write)(descriptor, from, length);
}

static int sync_as(int descriptor, int (*call)(int)) {
    if (!is_sick(descriptor)) return call(descriptor);
    int failed = enter(SYNCS);
    failed = note_sync(descriptor, failed);
    if (failed) return refuse(failed);
    leave(); /* the page cache outlives this process; what a power cut takes is in the journal */
    return 0;
}

int fsync(int descriptor) { return sync_as(descriptor, REAL(fsync)); }
int fdatasync(int descriptor) { return sync_as(descriptor, REAL(fdatasync)); }

/* Writes of one part only; with RWF_DSYNC what is written is synced, and so is the whole file here. */
static ssize_t write_synced_as(int descriptor, const struct iovec *parts, off64_t at, int flags) {
    ssize_t done = write_as(descriptor, parts[0].iov_base, parts[0].iov_len, at, 0);
    if (done < 0 || !(flags & RWF_DSYNC)) return done;
    return fdatasync(descriptor) ? -1 : done;
}

ssize_t pwritev2(int descriptor, const struct iovec *parts, int count, off_t at, int flags) {
    return is_sick(descriptor) && count == 1 ? write_synced_as(descriptor, parts, at, flags)
                                             : REAL(pwritev2)(descriptor, parts, count, at, flags);
}

ssize_t pwritev64v2(int descriptor, const struct iovec *parts, int count, off64_t at, int flags) {
    return is_sick(descriptor) && count == 1 ? write_synced_as(descriptor, parts, at, flags)
                                             : REAL(pwritev64v2)(descriptor, parts, count, at, flags);
}

static int allocate_as(int descriptor, off64_t at, off64_t length) {
    if (!is_sick(descriptor)) return REAL(posix_fallocate64)(descriptor, at, length);
    int failed = enter(ALLOCATES);
    struct stat found;
    if (!failed && !fstat(descriptor, &found) && !has_room(at + length - found.st_blocks * 512)) failed = ENOSPC;
    if (!failed) failed = REAL(posix_fallocate64)(descriptor, at, length);
    leave();
    return failed;
}

int posix_fallocate(int descriptor, off_t at, off_t length) { return allocate_as(descriptor, at, length); }
int posix_fallocate64(int descriptor, off64_t at, off64_t length) { return allocate_as(descriptor, at, length); }

static int truncate_as(int descriptor, off64_t length) {
    if (!is_sick(descriptor)) return REAL(ftruncate64)(descriptor, length);
    int failed = enter(TRUNCATES);
    if (failed) return refuse(failed);
    struct stat before, after;
    int is_known = !fstat(descriptor, &before);
    int done = REAL(ftruncate64)(descriptor, length);
    if (!done && is_known && !fstat(descriptor, &after)) {
        free_room((before.st_blocks - after.st_blocks) * 512);
        pthread_mutex_lock(&journal);
        forget(before.st_dev, before.st_ino, length, INT64_MAX, 1);
        pthread_mutex_unlock(&journal);
    }
    leave();
    return done;
}

int ftruncate(int descriptor, off_t length) { return truncate_as(descriptor, length); }
int ftruncate64(int descriptor, off64_t length) { return truncate_as(descriptor, length); }

int rename(const char *from, const char *to) {
    if (!under_root(to)) return REAL(rename)(from, to);
    int failed = enter(RENAMES);
    if (failed) return refuse(failed);
    int64_t freed = bytes_of(to);
    int done = REAL(rename)(from, to);
    if (!done) free_room(freed);
    leave();
    return done;
}

int unlink(const char *path) {
    if (!under_root(path)) return REAL(unlink)(path);
    int failed = enter(UNLINKS);
    if (failed) return refuse(failed);
    int64_t freed = bytes_of(path);
    int done = REAL(unlink)(path);
    if (!done) free_room(freed);
    leave();
    return done;
}

static void *map_as(void *where, size_t length, int rights, int flags, int descriptor, off64_t at) {
    if (!is_sick(descriptor)) return REAL(mmap64)(where, length, rights, flags, descriptor, at);
    int failed = enter(MMAPS);
    if (failed) { refuse(failed); return MAP_FAILED; }
    void *mapped = REAL(mmap64)(where, length, rights, flags, descriptor, at);
    leave();
    return mapped;
}

void *mmap(void *where, size_t length, int rights, int flags, int descriptor, off_t at) {
    return map_as(where, length, rights, flags, descriptor, at);
}

void *mmap64(void *where, size_t length, int rights, int flags, int descriptor, off64_t at) {
    return map_as(where, length, rights, flags, descriptor, at);
}

int statvfs64(const char *path, struct statvfs64 *said) {
    int done = REAL(statvfs64)(path, said);
    if (!done && under_root(path) && control[ARMED] && control[FULL] && control[TELL_ROOM]) {
        int64_t room = control[ROOM] > 0 ? control[ROOM] : 0;
        said->f_bfree = said->f_bavail = room / said->f_frsize;
    }
    return done;
}

int statvfs(const char *path, struct statvfs *said) {
    int done = REAL(statvfs)(path, said);
    if (!done && under_root(path) && control[ARMED] && control[FULL] && control[TELL_ROOM]) {
        int64_t room = control[ROOM] > 0 ? control[ROOM] : 0;
        said->f_bfree = said->f_bavail = room / said->f_frsize;
    }
    return done;
}
