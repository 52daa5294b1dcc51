/* Preloaded: delays one in a hundred of librbd's mutex locks by up to 30 ms, as if its thread were preempted there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int pthread_mutex_lock(pthread_mutex_t *mutex) {
    static int (*lock)(pthread_mutex_t *);
    static __thread unsigned seed;
    Dl_info caller;

    if (!lock)
        lock = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
    if (!seed)
        seed = (unsigned)(uintptr_t)&seed ^ (unsigned)getpid();
    if (rand_r(&seed) % 100 == 0 && dladdr(__builtin_return_address(0), &caller) &&
        strstr(caller.dli_fname, "librbd"))
        usleep((unsigned)rand_r(&seed) % 30000);
    return lock(mutex);
}
