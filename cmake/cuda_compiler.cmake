# Enables CUDA with the compiler that the user names by CMAKE_CUDA_COMPILER, CUDACXX or CUDA_HOME, else with
# that of the build requirement nvidia-cuda-nvcc. An nvcc that merely lies on PATH is not used.
set(remedy "Build with pip, which brings a compiler, or name a CUDA toolkit of 12.4 or newer by CUDA_HOME.")

if(NOT CMAKE_CUDA_COMPILER AND "$ENV{CUDACXX}" STREQUAL "")
  if(NOT "$ENV{CUDA_HOME}" STREQUAL "")
    set(toolkit "$ENV{CUDA_HOME}")
  else()
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c "import importlib.util as u, pathlib
spec = u.find_spec('nvidia') and u.find_spec('nvidia.cu13')
for root in spec.submodule_search_locations if spec else ():
    if pathlib.Path(root, 'bin', 'nvcc').exists():
        print(root)
        break"
      OUTPUT_VARIABLE toolkit OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    # nvcc looks for the runtime in lib64, the packages of PyPI keep it in lib; they have it from CMake's first
    # trial of the compiler on.
    set(CMAKE_CUDA_FLAGS_INIT "-L\"${toolkit}/lib\"")
  endif()
  if(NOT toolkit OR NOT EXISTS "${toolkit}/bin/nvcc")
    message(FATAL_ERROR "jax_gemm: no CUDA compiler among the build requirements and none in CUDA_HOME "
                        "('$ENV{CUDA_HOME}'). ${remedy}")
  endif()
  set(CMAKE_CUDA_COMPILER "${toolkit}/bin/nvcc" CACHE FILEPATH "CUDA compiler")
endif()

# The architectures are each target's own; this one only serves the trial.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80)
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
  message(FATAL_ERROR "jax_gemm: ${CMAKE_CUDA_COMPILER} is of CUDA ${CMAKE_CUDA_COMPILER_VERSION}. ${remedy}")
endif()
