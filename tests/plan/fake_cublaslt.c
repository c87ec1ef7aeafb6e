/* A driver with one card and a cuBLASLt whose heuristic answers what FAKE_CONFIG says, for tests of plan_query.py. It
   writes what it was asked to the file FAKE_ASKED. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE* asked(void) { return fopen(getenv("FAKE_ASKED"), "a"); }
static void note(const char* what, long a, long b, long c) {
  FILE* f = asked();
  fprintf(f, "%s %ld %ld %ld\n", what, a, b, c);
  fclose(f);
}
static int made(void** handle) {
  *handle = malloc(1);
  return 0;
}
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int* count) { return *count = atoi(getenv("FAKE_CARDS")), 0; }
size_t cublasLtGetVersion(void) { return 130101; }
int cublasLtCreate(void** h) { return made(h); }
int cublasLtDestroy(void* h) { return free(h), note("destroy", 0, 0, 0), 0; }
int cublasLtMatmulDescCreate(void** h, int compute, int scale) { return note("desc", compute, scale, 0), made(h); }
int cublasLtMatmulDescDestroy(void* h) { return free(h), 0; }
int cublasLtMatmulDescSetAttribute(void* h, int attribute, const int* value, size_t bytes) {
  return (void)h, note("desc attribute", attribute, *value, (long)bytes), 0;
}
int cublasLtMatrixLayoutCreate(void** h, int type, unsigned long rows, unsigned long cols, long ld) {
  note("layout", type, (long)rows, (long)cols);
  return ld == (long)rows ? made(h) : 7;
}
int cublasLtMatrixLayoutDestroy(void* h) { return free(h), 0; }
int cublasLtMatmulPreferenceCreate(void** h) { return made(h); }
int cublasLtMatmulPreferenceDestroy(void* h) { return free(h), 0; }
int cublasLtMatmulPreferenceSetAttribute(void* h, int attribute, const void* value, size_t bytes) {
  long v = 0;
  memcpy(&v, value, bytes);
  return (void)h, note("preference", attribute, v, (long)bytes), 0;
}
int cublasLtMatmulAlgoGetHeuristic(void* lt, void* desc, void* a, void* b, void* c, void* d, void* preference, int wanted,
                                   void* result, int* found) {
  (void)(lt && desc && a && b && c && d && preference && result);
  *found = getenv("FAKE_CONFIG") ? wanted : 0;
  return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const void* algo, int attribute, int* value, size_t bytes, size_t* written) {
  char text[64];
  (void)algo;
  strncpy(text, getenv("FAKE_CONFIG"), sizeof text - 1);
  text[sizeof text - 1] = 0;
  char* word = strtok(text, ",");
  for (int i = 0; i < attribute && word; ++i) word = strtok(NULL, ",");
  *value = word ? atoi(word) : 0;
  *written = 4;
  return bytes == 4 ? 0 : 7;
}
