/* A libnvidia-ml.so.1 for machines without a GPU, loaded by the real pynvml.
 *
 * What it shows is read afresh from the file named by FAKE_NVML_STATE at every call, so a test
 * changes the "hardware" under a running program. It keeps NVML's promises: reference-counted
 * initialisation, handles that end with it, error codes, the two-call size protocol, versioned
 * structs, and memory that v1 counts with the driver's reserve and v2 without.
 *
 * State, one record a line, fields separated by tabs (tests/fakes/nvml.py writes it):
 *   gpu      uuid name total used reserved compute_mode ecc_errors rows_pending mig_capable mig_on
 *            pages_pending
 *   slice    gpu uuid name total used gpu_instance compute_instance
 *   process  device kind pid bytes
 *   fail     function code device
 * Memory is in bytes. `ecc_errors`, `rows_pending` and `pages_pending` are -1 where not supported,
 * `bytes` where not available. `device` is a UUID or `*`. A slice belongs to the GPU named by its
 * UUID. A failure of code -1 is none: the call hangs, in the driver, until the state says otherwise.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
typedef int Result;
typedef void *Handle;

enum {
    HANG = -1,
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999
};
enum { MAX_DEVICES = 64, MAX_PROCESSES = 256, MAX_FAILURES = 64, MAX_FIELDS = 12 };

typedef struct {
    int is_slice, compute_mode, mig_capable, mig_on, pages_pending;
    unsigned gpu_instance, compute_instance;
    long long ecc_errors, rows_pending;
    unsigned long long total, used, reserved;
    char uuid[96], name[96], parent[96];
} Device;
typedef struct { char device[96], kind[16]; unsigned pid; long long bytes; } Process;
typedef struct { char function[64], device[96]; int code; } Failure;

static Device devices[MAX_DEVICES];
static Process processes[MAX_PROCESSES];
static Failure failures[MAX_FAILURES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int device_count, process_count, failure_count;
static int references;             /* nvmlInit minus nvmlShutdown */
static uintptr_t generation = 1;   /* handles of an earlier initialisation are invalid */

static void copy(char *target, size_t size, const char *text) {
    snprintf(target, size, "%s", text);
}

static void read_record(char **f, int n) {
    if (!strcmp(f[0], "gpu") && n == 12 && device_count < MAX_DEVICES) {
        Device *d = &devices[device_count++];
        copy(d->uuid, sizeof d->uuid, f[1]);
        copy(d->name, sizeof d->name, f[2]);
        d->total = strtoull(f[3], 0, 10);
        d->used = strtoull(f[4], 0, 10);
        d->reserved = strtoull(f[5], 0, 10);
        d->compute_mode = atoi(f[6]);
        d->ecc_errors = atoll(f[7]);
        d->rows_pending = atoll(f[8]);
        d->mig_capable = atoi(f[9]);
        d->mig_on = atoi(f[10]);
        d->pages_pending = atoi(f[11]);
    } else if (!strcmp(f[0], "slice") && n == 8 && device_count < MAX_DEVICES) {
        Device *d = &devices[device_count++];
        d->is_slice = 1;
        copy(d->parent, sizeof d->parent, f[1]);
        copy(d->uuid, sizeof d->uuid, f[2]);
        copy(d->name, sizeof d->name, f[3]);
        d->total = strtoull(f[4], 0, 10);
        d->used = strtoull(f[5], 0, 10);
        d->gpu_instance = strtoul(f[6], 0, 10);
        d->compute_instance = strtoul(f[7], 0, 10);
    } else if (!strcmp(f[0], "process") && n == 5 && process_count < MAX_PROCESSES) {
        Process *p = &processes[process_count++];
        copy(p->device, sizeof p->device, f[1]);
        copy(p->kind, sizeof p->kind, f[2]);
        p->pid = strtoul(f[3], 0, 10);
        p->bytes = atoll(f[4]);
    } else if (!strcmp(f[0], "fail") && n == 4 && failure_count < MAX_FAILURES) {
        Failure *x = &failures[failure_count++];
        copy(x->function, sizeof x->function, f[1]);
        x->code = atoi(f[2]);
        copy(x->device, sizeof x->device, f[3]);
    } else {
        fprintf(stderr, "fake NVML: cannot read a record '%s' of %d fields\n", f[0], n);
        abort();
    }
}

static int read_state(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return 0;
    device_count = process_count = failure_count = 0;
    memset(devices, 0, sizeof devices);
    char line[1024];
    while (fgets(line, sizeof line, file)) {
        char *fields[MAX_FIELDS], *rest = line, *field;
        int n = 0;
        line[strcspn(line, "\n")] = 0;
        while (n < MAX_FIELDS && (field = strsep(&rest, "\t"))) fields[n++] = field;
        if (n && *fields[0]) read_record(fields, n);
    }
    fclose(file);
    return 1;
}

static int take(void) { return pthread_mutex_lock(&mutex); }
static void give(int *taken) {
    (void)taken;
    pthread_mutex_unlock(&mutex);
}
/* For the rest of the function: several threads may call, also while one of them hangs. */
#define ALONE __attribute__((cleanup(give))) int taken = take()

static Result failure_of(const char *function, const char *uuid) {
    for (int i = 0; i < failure_count; i++)
        if (!strcmp(failures[i].function, function) &&
            (!strcmp(failures[i].device, "*") || (uuid && !strcmp(failures[i].device, uuid))))
            return failures[i].code;
    return SUCCESS;
}

static Result injected(const char *function, const char *uuid) {
    Result code;
    while ((code = failure_of(function, uuid)) == HANG) {
        give(NULL);
        usleep(1000);
        take();
        if (!read_state()) return DRIVER_NOT_LOADED;
    }
    return code;
}

static Handle handle_of(const Device *d) {
    return (Handle)((generation << 16) + (uintptr_t)(d - devices) + 1);
}

static Device *device_of(Handle handle) {
    uintptr_t value = (uintptr_t)handle, index = (value & 0xffff) - 1;
    return value >> 16 == generation && index < (uintptr_t)device_count ? &devices[index] : NULL;
}

static Device *gpu_at(unsigned index) {
    for (int i = 0; i < device_count; i++)
        if (!devices[i].is_slice && index-- == 0) return &devices[i];
    return NULL;
}

/* Every call starts with one of these: state, initialisation, handle, injected error. */
#define ENTER(uuid)                                    \
    ALONE;                                             \
    do {                                               \
        if (!references) return UNINITIALIZED;         \
        if (!read_state()) return DRIVER_NOT_LOADED;   \
        Result failure = injected(__func__, (uuid));   \
        if (failure) return failure;                   \
    } while (0)
#define ENTER_DEVICE(d)                                \
    ENTER(NULL);                                       \
    Device *d = device_of(handle);                     \
    if (!d) return INVALID_ARGUMENT;                   \
    do {                                               \
        Result failure = injected(__func__, d->uuid);  \
        if (failure) return failure;                   \
    } while (0)

static Result text(char *target, unsigned size, const char *value) {
    if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(target, value);
    return SUCCESS;
}

API Result nvmlInitWithFlags(unsigned flags) {
    ALONE;
    (void)flags;
    if (!read_state()) return DRIVER_NOT_LOADED;
    Result failure = injected(__func__, NULL);
    if (failure) return failure;
    references++;
    return SUCCESS;
}

API Result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

API Result nvmlShutdown(void) {
    ALONE;
    if (!references) return UNINITIALIZED;
    if (--references == 0) generation++;
    return SUCCESS;
}

API const char *nvmlErrorString(Result code) {
    switch (code) {
    case SUCCESS: return "The operation was successful";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case VERSION_MISMATCH: return "Driver/library version mismatch";
    case ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

API Result nvmlSystemGetDriverVersion(char *target, unsigned size) {
    ENTER(NULL);
    return text(target, size, "570.86.15");
}

API Result nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER(NULL);
    *version = 12080;
    return SUCCESS;
}

API Result nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(NULL);
    for (*count = 0; gpu_at(*count);) ++*count;
    return SUCCESS;
}

API Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *handle) {
    ENTER(NULL);
    Device *d = gpu_at(index);
    if (!d) return INVALID_ARGUMENT;
    Result failure = injected(__func__, d->uuid);
    if (failure) return failure;
    *handle = handle_of(d);
    return SUCCESS;
}

API Result nvmlDeviceGetHandleByUUID(const char *uuid, Handle *handle) {
    ENTER(uuid);
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].uuid, uuid)) {
            *handle = handle_of(&devices[i]);
            return SUCCESS;
        }
    return NOT_FOUND;
}

API Result nvmlDeviceGetName(Handle handle, char *target, unsigned size) {
    ENTER_DEVICE(d);
    return text(target, size, d->name);
}

API Result nvmlDeviceGetUUID(Handle handle, char *target, unsigned size) {
    ENTER_DEVICE(d);
    return text(target, size, d->uuid);
}

typedef struct { unsigned long long total, free, used; } Memory;
API Result nvmlDeviceGetMemoryInfo(Handle handle, Memory *memory) {
    ENTER_DEVICE(d);
    memory->total = d->total;
    memory->used = d->used + d->reserved;
    memory->free = d->total - memory->used;
    return SUCCESS;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
API Result nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryV2 *memory) {
    ENTER_DEVICE(d);
    if (memory->version != (sizeof *memory | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
    memory->total = d->total;
    memory->reserved = d->reserved;
    memory->used = d->used;
    memory->free = d->total - d->reserved - d->used;
    return SUCCESS;
}

API Result nvmlDeviceGetComputeMode(Handle handle, int *mode) {
    ENTER_DEVICE(d);
    if (d->is_slice) return NOT_SUPPORTED;
    *mode = d->compute_mode;
    return SUCCESS;
}

API Result nvmlDeviceGetTotalEccErrors(Handle handle, int type, int counter,
                                       unsigned long long *count) {
    ENTER_DEVICE(d);
    if (type != 1 || counter != 0) return INVALID_ARGUMENT; /* uncorrected, volatile */
    if (d->is_slice || d->ecc_errors < 0) return NOT_SUPPORTED;
    *count = (unsigned long long)d->ecc_errors;
    return SUCCESS;
}

API Result nvmlDeviceGetRemappedRows(Handle handle, unsigned *corrected, unsigned *uncorrected,
                                     unsigned *pending, unsigned *failed) {
    ENTER_DEVICE(d);
    if (d->is_slice || d->rows_pending < 0) return NOT_SUPPORTED;
    *corrected = *uncorrected = *failed = 0;
    *pending = d->rows_pending > 0;
    return SUCCESS;
}

API Result nvmlDeviceGetRetiredPagesPendingStatus(Handle handle, int *pending) {
    ENTER_DEVICE(d);
    if (d->is_slice || d->pages_pending < 0) return NOT_SUPPORTED;
    *pending = d->pages_pending;
    return SUCCESS;
}

API Result nvmlDeviceGetMigMode(Handle handle, unsigned *current, unsigned *pending) {
    ENTER_DEVICE(d);
    if (!d->mig_capable) return NOT_SUPPORTED;
    *current = *pending = (unsigned)d->mig_on;
    return SUCCESS;
}

API Result nvmlDeviceGetMaxMigDeviceCount(Handle handle, unsigned *count) {
    ENTER_DEVICE(d);
    *count = d->mig_capable ? 7 : 0;
    return SUCCESS;
}

API Result nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, unsigned index, Handle *slice) {
    ENTER_DEVICE(d);
    if (!d->mig_capable) return NOT_SUPPORTED;
    if (index >= 7) return INVALID_ARGUMENT;
    for (int i = 0; i < device_count; i++)
        if (devices[i].is_slice && !strcmp(devices[i].parent, d->uuid) && index-- == 0) {
            *slice = handle_of(&devices[i]);
            return SUCCESS;
        }
    return NOT_FOUND;
}

API Result nvmlDeviceGetGpuInstanceId(Handle handle, unsigned *id) {
    ENTER_DEVICE(d);
    if (!d->is_slice) return NOT_SUPPORTED;
    *id = d->gpu_instance;
    return SUCCESS;
}

API Result nvmlDeviceGetComputeInstanceId(Handle handle, unsigned *id) {
    ENTER_DEVICE(d);
    if (!d->is_slice) return NOT_SUPPORTED;
    *id = d->compute_instance;
    return SUCCESS;
}

typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

static Result list_processes(const Device *d, const char *kind, unsigned *count,
                             ProcessInfo *infos) {
    unsigned needed = 0, given = *count;
    for (int i = 0; i < process_count; i++) {
        const Process *p = &processes[i];
        if (strcmp(p->device, d->uuid) || strcmp(p->kind, kind)) continue;
        if (infos && needed < given)
            infos[needed] = (ProcessInfo){
                p->pid, p->bytes < 0 ? ~0ULL : (unsigned long long)p->bytes,
                d->is_slice ? d->gpu_instance : ~0u, d->is_slice ? d->compute_instance : ~0u};
        needed++;
    }
    *count = needed;
    return needed && (!infos || needed > given) ? INSUFFICIENT_SIZE : SUCCESS;
}

API Result nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned *n, ProcessInfo *infos) {
    ENTER_DEVICE(d);
    return list_processes(d, "compute", n, infos);
}

API Result nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle handle, unsigned *n,
                                                      ProcessInfo *infos) {
    ENTER_DEVICE(d);
    return list_processes(d, "mps", n, infos);
}

API Result nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, unsigned *n,
                                                    ProcessInfo *infos) {
    ENTER_DEVICE(d);
    return list_processes(d, "graphics", n, infos);
}
