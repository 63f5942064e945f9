// Garbage in static shared memory. It is static memory of functions here, which would begin as
// zeros and keep what an earlier block left; the library's own table of symbols says where it lies.
// A library that was stripped of it runs without.
#pragma once

namespace inferc::emulation {

struct Range {
    unsigned char *at;
    size_t bytes;
};
constexpr int kMostRanges = 1024;
inline Range static_shared[kMostRanges];
inline int static_shared_count = -1;  // before they were looked for

// Variables of functions other than the emulation's, among those that begin as zeros.
inline bool is_static_shared(const Elf64_Sym &symbol, const char *name, const Elf64_Shdr &zeros) {
    const char own[] = "_ZZN6inferc9emulation";
    return ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT && strncmp(name, "_ZZ", 3) == 0 &&
           strncmp(name, own, sizeof own - 1) != 0 && symbol.st_value >= zeros.sh_addr &&
           symbol.st_value + symbol.st_size <= zeros.sh_addr + zeros.sh_size;
}

inline void find_ranges(const unsigned char *file, const void *base) {
    Elf64_Ehdr header;
    memcpy(&header, file, sizeof header);
    const auto *sections = reinterpret_cast<const Elf64_Shdr *>(file + header.e_shoff);
    const auto text = [&](uint32_t section) {
        return reinterpret_cast<const char *>(file + sections[section].sh_offset);
    };
    const char *names = text(header.e_shstrndx);
    const Elf64_Shdr *symbols = nullptr, *zeros = nullptr;
    for (int i = 0; i < header.e_shnum; i++) {
        if (sections[i].sh_type == SHT_SYMTAB) symbols = sections + i;
        if (strcmp(names + sections[i].sh_name, ".bss") == 0) zeros = sections + i;
    }
    if (symbols == nullptr || zeros == nullptr) return;
    const auto *symbol = reinterpret_cast<const Elf64_Sym *>(file + symbols->sh_offset);
    const char *strings = text(symbols->sh_link);
    uintptr_t shift = header.e_type == ET_EXEC ? 0 : reinterpret_cast<uintptr_t>(base);
    for (size_t i = 0; i < symbols->sh_size / sizeof *symbol; i++) {
        if (!is_static_shared(symbol[i], strings + symbol[i].st_name, *zeros)) continue;
        if (static_shared_count == kMostRanges) return;
        static_shared[static_shared_count++] = {
            reinterpret_cast<unsigned char *>(shift + symbol[i].st_value), symbol[i].st_size};
    }
}

inline void find_static_shared() {
    static_shared_count = 0;
    Dl_info library;
    struct stat status;
    if (dladdr(&block, &library) == 0) return;
    int descriptor = open(library.dli_fname, O_RDONLY);
    if (descriptor < 0) return;
    if (fstat(descriptor, &status) == 0 && size_t(status.st_size) > sizeof(Elf64_Ehdr)) {
        void *file = mmap(nullptr, size_t(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (file != MAP_FAILED) {
            find_ranges(static_cast<const unsigned char *>(file), library.dli_fbase);
            munmap(file, size_t(status.st_size));
        }
    }
    close(descriptor);
}

// Before each launch: the first block to run finds garbage, a later one what the one before it
// left.
inline void fill_static_shared() {
    if (static_shared_count < 0) find_static_shared();
    for (int i = 0; i < static_shared_count; i++)
        memset(static_shared[i].at, kGarbage, static_shared[i].bytes);
}

}  // namespace inferc::emulation
