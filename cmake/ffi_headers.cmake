# JAX_GEMM_FFI_INCLUDE_DIR: the headers of XLA's FFI, of API 0.1. A library compiled against newer ones is
# refused by older runtimes, one compiled against the oldest is taken by all.
if(NOT JAX_GEMM_FFI_INCLUDE_DIR)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import importlib.util, pathlib
spec = importlib.util.find_spec('jaxlib')
print(pathlib.Path(spec.origin).parent / 'include' if spec else '')"
    OUTPUT_VARIABLE include OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(JAX_GEMM_FFI_INCLUDE_DIR "${include}" CACHE PATH "Headers of XLA's FFI, of jaxlib 0.7.2")
endif()

set(minor "none")
if(EXISTS "${JAX_GEMM_FFI_INCLUDE_DIR}/xla/ffi/api/c_api.h")
  file(STRINGS "${JAX_GEMM_FFI_INCLUDE_DIR}/xla/ffi/api/c_api.h" minor REGEX "define XLA_FFI_API_MINOR")
  string(REGEX REPLACE ".* " "" minor "${minor}")
endif()
if(NOT minor STREQUAL "1")
  message(FATAL_ERROR "jax_gemm: needs the FFI headers 0.1 of jaxlib 0.7.2, found '${minor}' in "
                      "'${JAX_GEMM_FFI_INCLUDE_DIR}'. Build with pip, or name them by JAX_GEMM_FFI_INCLUDE_DIR.")
endif()
