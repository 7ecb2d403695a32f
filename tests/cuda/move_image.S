// SPDX-License-Identifier: Apache-2.0
        .section .rodata
        .balign 64
        .globl kvfolio_move_image
        .type kvfolio_move_image, @object
kvfolio_move_image:
        .incbin KVFOLIO_MOVE_IMAGE
        .size kvfolio_move_image, .-kvfolio_move_image
        .section .note.GNU-stack,"",@progbits
