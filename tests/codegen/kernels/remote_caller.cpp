// Calls functions of a shared library for another process: requests on stdin, answers on stdout.
// Runs on the machine of the library, which may be emulated. See remote_library.py.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {

void need(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "remote_caller: %s\n", what);
    exit(1);
}

void read_bytes(void *to, size_t count) {
    need(count == 0 || fread(to, 1, count, stdin) == count, "the request is cut off");
}

int64_t read_number() {
    int64_t value;
    read_bytes(&value, 8);
    return value;
}

void write_bytes(const void *from, size_t count) {
    need(fwrite(from, 1, count, stdout) == count, "the answer cannot be written");
}

struct Buffer {
    uint8_t *memory, *data;
    int64_t size;
};

constexpr int kBuffers = 4096, kArguments = 24;
Buffer buffers[kBuffers];

// The same place within 64 bytes as at the caller's.
Buffer read_buffer() {
    const int64_t size = read_number(), start = read_number();
    Buffer b = {(uint8_t *)aligned_alloc(64, size_t(size + 64 + 63) / 64 * 64), nullptr, size};
    need(b.memory != nullptr, "no memory");
    b.data = b.memory + start;
    read_bytes(b.data, size_t(size));
    return b;
}

// Pointers into buffers, which stand in buffers.
void place_pointers() {
    for (int64_t left = read_number(); left > 0; left--) {
        Buffer &holder = buffers[read_number()];
        const int64_t at = read_number();
        Buffer &target = buffers[read_number()];
        uint8_t *pointer = target.data + read_number();
        memcpy(holder.data + at, &pointer, 8);
    }
}

typedef int64_t (*Function)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                            int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                            int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                            float, float, float, float);

// Integers and floats have registers of their own, and only integers are so many that some lie on
// the stack, eight bytes each: so one signature serves all.
int64_t call(Function f) {
    int64_t i[kArguments] = {};
    float x[4] = {};
    int integers = 0, floats = 0;
    for (int64_t left = read_number(); left > 0; left--) {
        const int64_t kind = read_number(), value = read_number(), offset = read_number();
        need(integers < kArguments && floats < 4, "too many arguments");
        if (kind == 0) i[integers++] = value;
        if (kind == 1) i[integers++] = int64_t(buffers[value].data + offset);
        if (kind == 2) memcpy(&x[floats++], &value, 4);
    }
    return f(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11], i[12], i[13],
             i[14], i[15], i[16], i[17], i[18], i[19], i[20], i[21], i[22], i[23], x[0], x[1], x[2],
             x[3]);
}

}  // namespace

int main(int, char **arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    need(library != nullptr, library ? "" : dlerror());
    int64_t length;
    while (fread(&length, 1, 8, stdin) == 8) {
        char name[256] = {};
        need(length < 256, "the name is too long");
        read_bytes(name, size_t(length));
        void *symbol = dlsym(library, name);
        need(symbol != nullptr, name);
        const int64_t count = read_number();
        need(count <= kBuffers, "too many buffers");
        for (int64_t b = 0; b < count; b++) buffers[b] = read_buffer();
        place_pointers();
        const int64_t result = call((Function)symbol);
        write_bytes(&result, 8);
        for (int64_t b = 0; b < count; b++) {
            write_bytes(buffers[b].data, size_t(buffers[b].size));
            free(buffers[b].memory);
        }
        fflush(stdout);
    }
}
