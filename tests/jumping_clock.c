/* The time of day jumps by an hour, forward or back, a few times a second: the same for all processes of the machine at
   the same moment, as where somebody sets its clock. Loaded before libc (LD_PRELOAD). Clocks that only run on, as
   CLOCK_MONOTONIC, stay as they are. JUMPS_SEED makes other moments. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*plain_gettime)(clockid_t, struct timespec *);

static long shift(void) {
    struct timespec now;
    static uint64_t seed;
    if (!seed) {
        const char *told = getenv("JUMPS_SEED");
        seed = told ? strtoull(told, NULL, 10) + 1 : 1;
    }
    plain_gettime(CLOCK_MONOTONIC, &now);
    uint64_t draw = ((uint64_t)now.tv_sec * 4 + now.tv_nsec / 250000000) + (seed << 40); /* each quarter of a second */
    draw = (draw ^ (draw >> 30)) * 0xbf58476d1ce4e5b9ULL;
    draw = (draw ^ (draw >> 27)) * 0x94d049bb133111ebULL;
    return ((long)((draw ^ (draw >> 31)) % 3) - 1) * 3600;
}

static void find(void) {
    if (!plain_gettime) plain_gettime = dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *told) {
    find();
    int failed = plain_gettime(clock, told);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) told->tv_sec += shift();
    return failed;
}

time_t time(time_t *told) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *told, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    told->tv_sec = now.tv_sec;
    told->tv_usec = now.tv_nsec / 1000;
    return 0;
}

int timespec_get(struct timespec *told, int base) {
    return clock_gettime(CLOCK_REALTIME, told) ? 0 : base;
}

/* Waits until a time of day: the kernel's own clock stands where it stood, so what was reckoned by ours is taken back. */
static struct timespec taken_back(const struct timespec *until) {
    struct timespec real = *until, now;
    find();
    plain_gettime(CLOCK_REALTIME, &now);
    long ahead = real.tv_sec - now.tv_sec;
    if (ahead > 1800 && ahead < 5400) real.tv_sec -= 3600;
    if (ahead < -1800 && ahead > -5400) real.tv_sec += 3600;
    return real;
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    static int (*plain)(sem_t *, const struct timespec *);
    struct timespec real = taken_back(until);
    if (!plain) plain = dlsym(RTLD_NEXT, "sem_timedwait");
    return plain(semaphore, &real);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *until) {
    static int (*plain)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec real = taken_back(until); /* one by CLOCK_MONOTONIC is decades away, and stays */
    if (!plain) plain = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!plain) plain = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    return plain(condition, lock, &real);
}
