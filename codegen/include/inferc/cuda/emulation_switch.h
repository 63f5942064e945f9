// From one stack to another.
#pragma once

namespace inferc::emulation {

extern "C" void inferc_switch_stack(void **from, void *to);

// Saves what a callee must keep, changes stacks, restores. A fiber's first switch enters the
// address left on its stack by fiber_begin.
#if !defined(INFERC_EMULATION)
#elif defined(__x86_64__)
constexpr size_t kSavedBytes = 6 * 8, kEntryOffset = 6 * 8, kFrameBytes = kSavedBytes + 2 * 8;
asm(R"(
.text
.weak inferc_switch_stack
.hidden inferc_switch_stack
.type inferc_switch_stack,@function
inferc_switch_stack:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp,(%rdi)
    mov %rsi,%rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size inferc_switch_stack,.-inferc_switch_stack
)");
#elif defined(__aarch64__)
constexpr size_t kSavedBytes = 160, kEntryOffset = 88, kFrameBytes = kSavedBytes;
asm(R"(
.text
.weak inferc_switch_stack
.hidden inferc_switch_stack
.type inferc_switch_stack,%function
inferc_switch_stack:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size inferc_switch_stack,.-inferc_switch_stack
)");
#else
#error "emulation needs a switch of stacks for this processor"
#endif

}  // namespace inferc::emulation
