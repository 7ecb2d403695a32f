# SPDX-License-Identifier: Apache-2.0
# What nvcc makes of the kernels, and the table of it that is linked into libkvfolio_cuda: ${images}.
#   moves                              for sm_80, sm_90a, and PTX for all later cards
#   attend, attend_TYPE_DIM            for sm_90a: cubins, whose kernels start behind each other by its means
#   attend_sm80, attend_sm80_TYPE_DIM  for every other card: sm_80, which runs on 8.x, and PTX for all later ones
set(KVFOLIO_CUDA_TILES "bf16_128;bf16_64;bf16_256;f16_128;f16_64;f16_256;int8_128;int8_64;int8_256;e4m3_128;e4m3_64;e4m3_256" CACHE STRING
  "Element types and head dims whose attention libkvfolio_cuda has on tensor cores; 8 to 30 s each to compile")
set(KVFOLIO_CUDA_ATTENTION "sm_80;sm_90a" CACHE STRING
  "What attention is compiled for: sm_90a is compute capability 9.0, sm_80 every other one from 8.0 on")
foreach(target IN LISTS KVFOLIO_CUDA_ATTENTION)
  if(NOT target MATCHES "^(sm_80|sm_90a)$")
    message(FATAL_ERROR "KVFOLIO_CUDA_ATTENTION has ${target}, allowed: sm_80, sm_90a")
  endif()
endforeach()
find_program(KVFOLIO_NVCC nvcc PATHS /usr/local/cuda/bin)
if(NOT KVFOLIO_NVCC)
  message(WARNING "SKIPPED: there is no nvcc here; libkvfolio_cuda has no kernels.")
  return()
endif()
enable_language(ASM)
set(images)
set(image_names)
set(nvcc ${KVFOLIO_NVCC} -std=c++20 -O3 --expt-relaxed-constexpr
  -I ${PROJECT_SOURCE_DIR}/src -I ${PROJECT_SOURCE_DIR}/include)
set(sm_80_on -gencode=arch=compute_80,code=[sm_80,compute_80] -gencode=arch=compute_90a,code=sm_90a)
set(for_sm_90a -gencode=arch=compute_90a,code=sm_90a)

# kvfolio_add_image(<name> SOURCE x.cu FLAGS ... [ROUNDED]): the file <name>.image, its place in the table, and
# <name>.ptxas, what its kernels take of a card. ROUNDED: its PTX names every rounding (compile_kernels).
function(kvfolio_add_image name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ROUNDED" "SOURCE" "FLAGS")
  set(rounded)
  if(arg_ROUNDED)
    set(rounded --rounded)
  endif()
  set(source ${PROJECT_SOURCE_DIR}/src/cuda/${arg_SOURCE})
  set(image ${CMAKE_CURRENT_BINARY_DIR}/${name}.image)
  add_custom_command(OUTPUT ${image}
    BYPRODUCTS ${CMAKE_CURRENT_BINARY_DIR}/${name}.ptxas
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/compile_kernels ${rounded} ${name}.ptxas
      ${nvcc} -Xptxas -v ${arg_FLAGS} -MD -MF ${name}.d -o ${image} ${source}
    DEPENDS ${source} ${CMAKE_CURRENT_SOURCE_DIR}/compile_kernels
    DEPFILE ${CMAKE_CURRENT_BINARY_DIR}/${name}.d
    COMMENT "nvcc ${name}" VERBATIM)
  set(image_names ${image_names} ${name} PARENT_SCOPE)
endfunction()

# -fmad=false: no product and sum are joined but where the text says so.
set(for_sm_80 -DKVFOLIO_CUDA_SM80 -fmad=false -gencode=arch=compute_80,code=[sm_80,compute_80])
# kvfolio_add_attention(<suffix> SOURCE x.cu FLAGS ...): the images of one source, for each of KVFOLIO_CUDA_ATTENTION.
macro(kvfolio_add_attention suffix)
  if(sm_90a IN_LIST KVFOLIO_CUDA_ATTENTION)
    kvfolio_add_image(attend${suffix} ${ARGN} ${for_sm_90a} -cubin)
  endif()
  # head_dim 256 takes more shared memory than those cards have; they compute it by the general kernel.
  if(sm_80 IN_LIST KVFOLIO_CUDA_ATTENTION AND NOT "${suffix}" MATCHES "_256$")
    kvfolio_add_image(attend_sm80${suffix} ROUNDED ${ARGN} ${for_sm_80} -fatbin)
  endif()
endmacro()

kvfolio_add_image(moves SOURCE move_module.cu FLAGS ${sm_80_on} -fatbin)
kvfolio_add_attention("" SOURCE attention/launch.cu FLAGS)
foreach(tile IN LISTS KVFOLIO_CUDA_TILES)
  if(NOT tile MATCHES "^(bf16|f16|int8|e4m3)_(64|128|256)$")
    message(FATAL_ERROR "KVFOLIO_CUDA_TILES has ${tile}, allowed: bf16, f16, int8, e4m3 with _64, _128 or _256")
  endif()
  set(element ${CMAKE_MATCH_1})
  set(dim ${CMAKE_MATCH_2})
  string(TOUPPER ${element} upper)
  string(REPLACE INT8 Int8 upper ${upper})
  kvfolio_add_attention(_${tile} SOURCE attention/tiles.cu
    FLAGS -DKVFOLIO_TILES_ELEMENT=k${upper} -DKVFOLIO_TILES_DIM=${dim})
endforeach()

set(symbols)
set(table)
set(depends)
foreach(name IN LISTS image_names)
  string(APPEND symbols "        .balign 64\n        .globl kvfolio_image_${name}\n        .hidden kvfolio_image_${name}\n"
    "kvfolio_image_${name}:\n        .incbin \"${CMAKE_CURRENT_BINARY_DIR}/${name}.image\"\n"
    "        .globl kvfolio_image_${name}_end\n        .hidden kvfolio_image_${name}_end\nkvfolio_image_${name}_end:\n")
  string(APPEND declarations "extern \"C\" const unsigned char kvfolio_image_${name}[], kvfolio_image_${name}_end[];\n")
  string(APPEND table "    {\"${name}\", kvfolio_image_${name},\n"
    "     static_cast<std::size_t>(kvfolio_image_${name}_end - kvfolio_image_${name})},\n")
  list(APPEND depends ${CMAKE_CURRENT_BINARY_DIR}/${name}.image)
endforeach()
file(CONFIGURE OUTPUT kernel_images.S CONTENT
"/* SPDX-License-Identifier: Apache-2.0 */
        .section .rodata
@symbols@        .section .note.GNU-stack,\"\",%progbits
" @ONLY)
file(CONFIGURE OUTPUT kernel_images.cc CONTENT
"// SPDX-License-Identifier: Apache-2.0
#include \"cuda/images.h\"
@declarations@
namespace kvfolio::cuda {
std::span<const KernelImage> kernel_images() {
  static const KernelImage kImages[] = {
@table@  };
  return kImages;
}
}  // namespace kvfolio::cuda
" @ONLY)
add_custom_command(OUTPUT driver_layout.o
  COMMAND ${nvcc} -c -o driver_layout.o ${CMAKE_CURRENT_SOURCE_DIR}/driver_layout.cu
  DEPENDS driver_layout.cu ${PROJECT_SOURCE_DIR}/src/cuda/driver.h
  COMMENT "nvcc driver_layout.cu" VERBATIM)
add_custom_target(kvfolio_driver_layout ALL DEPENDS driver_layout.o)
set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/kernel_images.S PROPERTIES OBJECT_DEPENDS "${depends}")
set(images ${CMAKE_CURRENT_BINARY_DIR}/kernel_images.S ${CMAKE_CURRENT_BINARY_DIR}/kernel_images.cc)
