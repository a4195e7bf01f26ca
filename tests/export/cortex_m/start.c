/* Starts a program on a Cortex-M: vectors, FPU, semihosting (printf and the exit code), then main. */
#include <stdlib.h>

typedef void (*handler)(void);

extern void stack_top(void); /* an address alone */
extern void initialise_monitor_handles(void);
extern int main(void);

static void reset(void) {
#ifdef __ARM_FP
    *(volatile unsigned *)0xE000ED88 |= 0xFu << 20; /* CPACR: full access to the FPU */
#endif
    initialise_monitor_handles();
    exit(main());
}

void _fini(void) {} /* exit calls it */

static void fault(void) { _Exit(99); }

/* The stack pointer, reset, NMI, and the faults. */
__attribute__((section(".vectors"), used)) static const handler vectors[] = {
    stack_top, reset, fault, fault, fault, fault, fault,
};
