/* Numbers of system calls for lists of what a process may do. x86-64 has some calls in an older form, too, which ARM64
 * lacks: there the name stands for the form that libc calls instead. */
#pragma once

#include <sys/syscall.h>

#if defined(__aarch64__)
#define SYS_access       SYS_faccessat
#define SYS_alarm        SYS_setitimer
#define SYS_arch_prctl   SYS_prctl
#define SYS_dup2         SYS_dup3
#define SYS_epoll_create SYS_epoll_create1
#define SYS_epoll_wait   SYS_epoll_pwait
#define SYS_eventfd      SYS_eventfd2
#define SYS_getpgrp      SYS_getpgid
#define SYS_lstat        SYS_newfstatat
#define SYS_mkdir        SYS_mkdirat
#define SYS_open         SYS_openat
#define SYS_pause        SYS_ppoll
#define SYS_pipe         SYS_pipe2
#define SYS_poll         SYS_ppoll
#define SYS_readlink     SYS_readlinkat
#define SYS_rename       SYS_renameat
#define SYS_rmdir        SYS_unlinkat
#define SYS_select       SYS_pselect6
#define SYS_signalfd     SYS_signalfd4
#define SYS_stat         SYS_newfstatat
#define SYS_time         SYS_clock_gettime
#define SYS_unlink       SYS_unlinkat
#endif
