"""Real sentences that the tests share."""

AZERBAIJANI = (
    "Dünən axşam Bakıda güclü külək əsdi və şəhərin bir neçə küçəsində ağaclar yıxıldı. "
    "Sakinlər deyirlər ki, belə hava bu fəsildə nadir hallarda olur, amma hər il bir dəfə mütləq təkrarlanır. "
    "Kommunal xidmət işçiləri gecə boyu yolları təmizlədilər, səhər saatlarında isə nəqliyyatın hərəkəti tam bərpa edildi. "
    "Meteoroloqlar xəbərdarlıq edirlər ki, həftənin sonuna qədər havanın temperaturu daha beş dərəcə aşağı düşəcək, "
    "ona görə də uşaqları olan ailələr üçün qalın geyimlər hazırlamaq məsləhət görülür."
)
ANOTHER = (
    "Nənəm hər bazar günü təndirdə çörək bişirərdi və biz uşaqlar onun ətrafında oturub nağıl dinləyərdik. "
    "Həyətdəki nar ağacının kölgəsi bütün süfrəni örtürdü, çay isə samovarda səhərdən axşama kimi qaynayırdı. "
    "İndi o kənddə az adam qalıb, evlərin çoxu boşdur, lakin yay aylarında qohumlar yenə oraya yığışır. "
    "Mən də hər il övladlarımı aparıram ki, onlar ata-babalarımızın yaşadığı torpağı, dağların havasını və bulaqların suyunu tanısınlar."
)
TURKISH = (
    "Dün akşam İstanbul'da şiddetli rüzgâr esti ve şehrin birkaç sokağında ağaçlar devrildi. "
    "Vatandaşlar böyle bir havanın bu mevsimde nadiren görüldüğünü, ancak her yıl bir kez mutlaka yaşandığını söylüyor. "
    "Belediye ekipleri gece boyunca yolları temizledi, sabah saatlerinde ise ulaşım tamamen normale döndü. "
    "Meteoroloji uzmanları hafta sonuna kadar sıcaklığın beş derece daha düşeceği konusunda uyarıyor, "
    "bu nedenle çocuklu ailelerin kalın giysiler hazırlaması tavsiye ediliyor."
)
ENGLISH = (
    "Strong winds hit the city last night and trees fell in several streets of the old town. "
    "Residents say that such weather is rare in this season, although it comes back once every year. "
    "Council workers cleared the roads all night, and by the morning the traffic was moving again. "
    "Forecasters warn that the temperature will drop by another five degrees before the end of the week."
)
RUSSIAN = (
    "Вчера вечером в городе дул сильный ветер, и на нескольких улицах повалило деревья. "
    "Жители говорят, что такая погода в это время года бывает редко, но каждый год она повторяется. "
    "Коммунальные службы всю ночь расчищали дороги, и к утру движение было полностью восстановлено. "
    "Метеорологи предупреждают, что до конца недели температура опустится ещё на пять градусов."
)
JAPANESE = (
    "昨日の夕方、市内では強い風が吹き、いくつかの通りで木が倒れた。住民によると、この季節にこのような天気になるのは珍しいが、"
    "毎年一度は必ず起こるという。市の作業員が夜通し道路を片付け、朝には交通が完全に元どおりになった。"
    "気象台は、週末までに気温がさらに五度下がると注意を呼びかけており、小さな子どものいる家庭には厚手の服を用意するよう勧めている。"
)
MORE_JAPANESE = (
    "祖母は毎週日曜日になると、庭のかまどでパンを焼いてくれた。私たち子どもは火のまわりに座り、昔話を聞くのが楽しみだった。"
    "大きな柘榴の木が食卓に影を落とし、湯沸かしは朝から晩まで静かに鳴っていた。今ではその村に住む人も少なくなり、"
    "多くの家には誰もいない。それでも夏になると親戚が集まり、畑や川辺で一日を過ごす。私も毎年、子どもたちを連れて行き、"
    "先祖が暮らした土地と山の空気、そして冷たい泉の水を知ってもらうことにしている。道は長いけれど、窓の外の景色を眺めていれば、"
    "退屈することはない。"
)
CROATIAN = (
    "Nitko se ne smije smatrati krivim za kazneno djelo na osnovi bilo kakvog čina ili propusta koji nisu bili kazneno djelo prema "
    "nacionalnom ili međunarodnom pravu u vrijeme kada su bili počinjeni."
)
BOSNIAN = (
    "Svako ima pravo na djelotvorna pravna sredstva putem nadležnih nacionalnih sudova zbog djela kojima se krše osnovna prava koja "
    "su mu dodijeljena u Ustavu ili zakonu. Niko ne smije biti podvrgnut samovoljnom hapšenju."
)
