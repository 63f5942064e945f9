// What a kernel does wrong by itself ends its launch with a message, and not the process: accesses
// that are not aligned (an error on the device, mostly unnoticed here), indices beyond an array,
// shifts beyond a word, and addresses where there is no memory.
//
// The first three are found by code that -fsanitize=alignment,bounds,shift-exponent adds; these are
// the functions it calls, in place of those of the compiler's library.
#pragma once

namespace inferc::emulation {

// As the compiler lays them out.
struct CheckPlace {
    const char *file;
    uint32_t line, column;
};
struct CheckType {
    uint16_t kind, info;
    char name[1];  // in quotes
};
struct AlignmentCheck {
    CheckPlace place;
    const CheckType *type;
    uint8_t log_alignment, kind;
};
struct BoundsCheck {
    CheckPlace place;
    const CheckType *array, *index;
};
struct ShiftCheck {
    CheckPlace place;
    const CheckType *left, *right;
};

template <class... Values>
inline void fail_check(const CheckPlace &place, const char *format, Values... values) {
    Site site = {place.file, int(place.line)};
    if (block.running) fail(site, format, values...);
    // In the host's part, where no launch can fail.
    fprintf(stderr, "%s:%d: ", site.file, site.line);
    fprintf(stderr, format, values...);
    abort();
}

// Signals that mean an address without memory, and a stack for their handler: that of a thread may
// be what is full.
constexpr int kSignals[] = {SIGSEGV, SIGBUS};
constexpr size_t kSignalStackBytes = 64 << 10;
struct SignalState {
    struct sigaction actions[2];
    stack_t stack;
};

inline void on_signal(int, siginfo_t *info, void *) {
    if (!block.running) {  // not ours: let it happen again, without us
        for (int signal : kSignals) ::signal(signal, SIG_DFL);
        return;
    }
    int at = begin_message();
    const Fiber &me = *block.current;
    write_message(at, "no memory at address %p", info->si_addr);
    if (me.what != nullptr)
        write_message(at, "; before that it waited in %s at %s:%d", me.what, me.site.file,
                      me.site.line);
    abandon();
}

// SA_NODEFER: the handler is left by a switch of stacks, and must be able to run again.
inline void catch_signals(SignalState &before) {
    static char memory[kSignalStackBytes];
    stack_t stack = {};
    stack.ss_sp = memory;
    stack.ss_size = kSignalStackBytes;
    sigaltstack(&stack, &before.stack);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < 2; i++) sigaction(kSignals[i], &action, &before.actions[i]);
}
inline void release_signals(const SignalState &before) {
    for (int i = 0; i < 2; i++) sigaction(kSignals[i], &before.actions[i], nullptr);
    sigaltstack(&before.stack, nullptr);
}

}  // namespace inferc::emulation

#define INFERC_CHECK_HANDLER extern "C" inline __attribute__((used))
INFERC_CHECK_HANDLER void __ubsan_handle_type_mismatch_v1(
    const ::inferc::emulation::AlignmentCheck *check, uintptr_t address) {
    ::inferc::emulation::fail_check(check->place, "address %p of %s is no multiple of %d",
                                    reinterpret_cast<void *>(address), check->type->name,
                                    1 << check->log_alignment);
}
INFERC_CHECK_HANDLER void __ubsan_handle_out_of_bounds(
    const ::inferc::emulation::BoundsCheck *check, uintptr_t index) {
    ::inferc::emulation::fail_check(check->place, "index %lld beyond %s",
                                    static_cast<long long>(index), check->array->name);
}
INFERC_CHECK_HANDLER void __ubsan_handle_shift_out_of_bounds(
    const ::inferc::emulation::ShiftCheck *check, uintptr_t, uintptr_t by) {
    ::inferc::emulation::fail_check(check->place, "shift of %s by %lld", check->left->name,
                                    static_cast<long long>(by));
}
#undef INFERC_CHECK_HANDLER
