#ifndef QUERN_TOOL_INTERRUPT_H
#define QUERN_TOOL_INTERRUPT_H

#include <stdbool.h>

/* Ctrl-C as a flag that work looks at, for commands that stop in order. A second one ends the program. */
void interrupt_catch(void);
bool interrupted(void);
/* As if Ctrl-C had come. */
void interrupt_set(void);
void interrupt_forget(void);

/* Wakes a wait for input; may be called in a signal handler. */
void interrupt_wake(void);
/* Waits for input. false: Ctrl-C came or interrupt_wake was called, before the call or during it. */
bool interrupt_wait(int fd);

#endif
