"""What the small models of the tests learn; apart, because texts need no torch."""

PRETRAINING_TEXTS = (
    "Bakı Azərbaycanın paytaxtı və ən böyük şəhəridir.",
    "Xəzər dənizinin sahilində külək tez-tez əsir, ona görə şəhərə küləklər şəhəri deyirlər.",
    "Uşaqlar məktəbdən sonra parkda oynayır.",
    "Bu gün hava soyuqdur, amma sabah günəşli olacaq.",
    "Kitabxanada oxucular sakitcə oturub mütaliə edirlər.",
    "Nənəm hər yay bağda gilas, ərik və tut yığır.",
    "Qatar səhər saat yeddidə Gəncəyə yola düşür.",
    "Ana dilində danışmaq hər kəsin hüququdur. " * 6,
)
